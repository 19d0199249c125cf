#include "train/training_step.h"

#include "autograd/profile.h"
#include "autograd/tape.h"
#include "train/dataset.h"

namespace mixgrad {

namespace {

/// A batch as the model takes it.
struct Example {
  Tensor inputs, targets;  // int32 [B, T]
};

Example draw(const StepBatches& batches, int64_t index) {
  const Span span("batch", Phase::update);
  const Batch batch = sample_batch(batches.tokens, batches.B, batches.T, batches.seed, index);
  const Shape shape{batch.rows, batch.length};
  return {Tensor::from(batch.inputs, shape), Tensor::from(batch.targets, shape)};
}

void forget_gradients(LanguageModel& model) {
  const Span span("zero gradients", Phase::update);
  model.zero_grad();
}

}  // namespace

double compute_gradients(LanguageModel& model, const StepBatches& batches, int64_t step, Generator* dropout) {
  double mean = 0;
  forget_gradients(model);
  const double share = 1.0 / static_cast<double>(batches.accumulate);
  for (int64_t micro = 0; micro < batches.accumulate; ++micro) {
    const Example example = draw(batches, step * batches.accumulate + micro);
    const Variable loss = model.loss(example.inputs, example.targets, dropout);
    mean += share * loss.value().item();
    backward({loss}, {Tensor::full({}, share, loss.dtype(), loss.value().device())});
  }
  return mean;
}

}  // namespace mixgrad
