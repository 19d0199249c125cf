#include "models/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mixgrad {

void SamplingOptions::validate() const {
  check_usage(tokens >= 0, "[generate] tokens ", tokens, "; allowed: 0 or more");
  check_usage(std::isfinite(temperature) && temperature >= 0, "[generate] temperature ", temperature,
              "; allowed: finite, 0 or more");
  check_usage(top_k >= 0, "[generate] top_k ", top_k, "; allowed: 0 (all) or more");
}

int32_t sample_token(const std::vector<double>& logits, const SamplingOptions& options,
                     Generator& generator) {
  const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  check(std::isfinite(logits[best]), "[generate] the model's logits are not finite: ", logits[best]);
  if (options.temperature == 0) return static_cast<int32_t>(best);

  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(ids.size())) {
    std::partial_sort(ids.begin(), ids.begin() + options.top_k, ids.end(), [&](int32_t a, int32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    ids.resize(options.top_k);
  }
  std::vector<double> cumulative;
  double total = 0;
  for (const int32_t id : ids) {
    // Relative to the best, before dividing: a tiny temperature must not overflow.
    total += std::exp((logits[id] - logits[best]) / options.temperature);
    cumulative.push_back(total);
  }
  const double point = generator.uniform() * total;
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), point) - cumulative.begin();
  return ids[std::min<size_t>(chosen, ids.size() - 1)];
}

namespace {

/// Reads tokens behind the state; the logits after the last one.
std::vector<double> read(LanguageModel& model, const std::vector<int32_t>& ids, LanguageModelState& state) {
  return model.next_logits(Tensor::from(ids, {1, static_cast<int64_t>(ids.size())}), state);
}

}  // namespace

void generate(LanguageModel& model, const std::vector<int32_t>& prompt, const SamplingOptions& options,
              Generator& generator, const std::function<void(int32_t)>& emit) {
  options.validate();
  check_usage(!prompt.empty(), "[generate] the prompt is empty; allowed: at least one token");
  const NoGrad no_grad;
  const int64_t longest = model.longest_read();
  const auto last_tokens = [](const std::vector<int32_t>& ids, int64_t count) {
    return std::vector<int32_t>(ids.end() - std::min<int64_t>(count, ids.size()), ids.end());
  };

  std::vector<int32_t> text = prompt;
  constexpr int64_t first_capacity = 4096;  // a cache that needs more grows
  LanguageModelState state = model.initial_state(1, std::min(longest, first_capacity));
  std::vector<double> logits = read(model, last_tokens(text, longest), state);
  for (int64_t step = 0; step < options.tokens; ++step) {
    const int32_t token = sample_token(logits, options, generator);
    text.push_back(token);
    emit(token);
    if (step + 1 == options.tokens) break;
    if (state.position < longest) {
      logits = read(model, {token}, state);
    } else {
      state = model.initial_state(1, longest);
      logits = read(model, last_tokens(text, (longest + 1) / 2), state);
    }
  }
}

}  // namespace mixgrad
