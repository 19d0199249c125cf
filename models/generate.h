// Generation: reading a prompt, then drawing one token after the other.
#pragma once

#include <functional>
#include <vector>

#include "models/language_model.h"

namespace mixgrad {

struct SamplingOptions {
  int64_t tokens = 256;    // how many to generate
  double temperature = 1;  // logits are divided by it; 0: always the most probable token
  int64_t top_k = 0;       // draw only from the k most probable; 0: from all

  /// Throws UsageError for a negative or non-finite temperature, negative counts.
  void validate() const;
};

/// One token drawn from the distribution that these logits give. Ties at temperature 0 go to the smaller id.
int32_t sample_token(const std::vector<double>& logits, const SamplingOptions& options, Generator& generator);

/// Continues the prompt (at least one token) and hands each new token to `emit` as it is drawn. The prompt is
/// read in one pass, then each token in one step on the model's state. A model with a learned context that is
/// full reads the last half of the context anew and goes on from there.
void generate(LanguageModel& model, const std::vector<int32_t>& prompt, const SamplingOptions& options,
              Generator& generator, const std::function<void(int32_t)>& emit);

}  // namespace mixgrad
