// A step's batches are those of its number, and its loss and gradients their means.
#include "train/training_step.h"

#include <doctest/doctest.h>

#include <cmath>

#include "autograd/tape.h"
#include "train/dataset.h"

namespace mixgrad {
namespace {

constexpr int64_t B = 2, T = 6, accumulate = 3;

struct Run {
  Run() {
    for (int32_t i = 0; i < 200; ++i) tokens.push_back(i * i % 11);
    ModelConfig config;
    config.vocabulary = 11;
    config.layers = 1;
    config.heads = 2;
    config.width = 8;
    config.context = T;
    config.pattern = "sdpa";
    Generator generator(4);
    Initialiser initialiser(DType::float64, Device{}, generator);
    model = std::make_unique<LanguageModel>(config, initialiser);
  }

  /// The loss of one batch; its gradients stay in the model.
  double batch_loss(uint64_t seed, int64_t index) {
    const Batch batch = sample_batch(tokens, B, T, seed, index);
    const Shape shape{B, T};
    const Variable loss = model->loss(Tensor::from(batch.inputs, shape), Tensor::from(batch.targets, shape));
    model->zero_grad();
    backward(loss);
    return loss.value().item();
  }

  std::vector<double> gradients() {
    std::vector<double> all;
    for (const Parameter& parameter : model->parameters()) {
      const std::vector<double> values = parameter.variable->grad().to_vector();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  std::vector<int32_t> tokens;
  std::unique_ptr<LanguageModel> model;
};

}  // namespace

TEST_CASE("train/training step: loss and gradients are means over the batches of that step") {
  Run run;
  constexpr int64_t step = 5;
  double loss = 0;
  std::vector<double> gradients(run.model->parameter_count());
  for (int64_t micro = 0; micro < accumulate; ++micro) {
    loss += run.batch_loss(7, step * accumulate + micro) / accumulate;
    const std::vector<double> part = run.gradients();
    for (size_t i = 0; i < part.size(); ++i) gradients[i] += part[i] / accumulate;
  }
  const double got = compute_gradients(*run.model, {run.tokens, B, T, accumulate, 7}, step, nullptr);
  CHECK(got == doctest::Approx(loss).epsilon(1e-13));
  // Rounding, 1e-17; the batches of another step differ by 0.003.
  const std::vector<double> all = run.gradients();
  for (size_t i = 0; i < all.size(); ++i) CHECK(std::abs(all[i] - gradients[i]) < 1e-15);
}

}  // namespace mixgrad
