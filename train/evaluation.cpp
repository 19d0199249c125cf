#include "train/evaluation.h"

#include <limits>
#include <numbers>

#include "train/dataset.h"
#include "train/signals.h"

namespace mixgrad {

std::optional<Evaluation> evaluate(LanguageModel& model, const Tokenizer& tokenizer,
                                   std::span<const int32_t> part, int64_t batch, int64_t most_batches) {
  const EvaluationBatches batches(part, batch, model.config().context,
                                  most_batches > 0 ? most_batches : std::numeric_limits<int64_t>::max());
  double nats = 0;
  int64_t tokens = 0;
  for (int64_t i = 0; i < batches.size(); ++i) {
    if (interrupt() != 0) return std::nullopt;
    const Batch window = batches[i];
    const Shape shape{window.rows, window.length};
    const NatsOfTargets sum =
        model.nats(Tensor::from(window.inputs, shape), Tensor::from(window.targets, shape));
    nats += sum.nats;
    tokens += sum.counted;
  }
  const auto bytes = static_cast<double>(tokenizer.byte_length(batches.targets()));
  return Evaluation{nats / static_cast<double>(tokens), nats / std::numbers::ln2 / bytes, tokens};
}

}  // namespace mixgrad
