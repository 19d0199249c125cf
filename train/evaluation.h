// The validation loss.
#pragma once

#include <optional>
#include <span>

#include "models/language_model.h"
#include "train/tokenizer.h"

namespace mixgrad {

struct Evaluation {
  double nats_per_token = 0;
  double bits_per_byte = 0;
  int64_t tokens = 0;  // targets that it is the mean over
};

/// The loss on a part of the data, by consecutive windows of the model's context; without dropout, without
/// gradients, drawing nothing. most_batches = 0: the whole part. Empty when an interrupt arrived on the way.
std::optional<Evaluation> evaluate(LanguageModel& model, const Tokenizer& tokenizer,
                                   std::span<const int32_t> part, int64_t batch, int64_t most_batches);

}  // namespace mixgrad
