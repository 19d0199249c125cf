// The split of a corpus, its random training batches and its evaluation batches.
#include "train/dataset.h"

#include <algorithm>

#include "tensor/error.h"
#include "tensor/random.h"

namespace mixgrad {
namespace {

int64_t ceil_divide(int64_t a, int64_t b) { return a / b + (a % b != 0); }

void check_batch_shape(int64_t B, int64_t T) {
  check_usage(B >= 1, "[dataset] batch size is ", B, "; it must be at least 1");
  check_usage(T >= 1, "[dataset] context is ", T, " tokens; it must be at least 1");
  check_usage(B <= std::numeric_limits<int64_t>::max() / T, "[dataset] a batch of ", B, " x ", T,
              " tokens is too large");
}

/// A random number in [0, n): the high half of the product of a 64-bit word and n.
int64_t scale_to(uint64_t word, int64_t n) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<int64_t>((Wide{word} * static_cast<uint64_t>(n)) >> 64);
}

Batch empty_batch(int64_t rows, int64_t length) {
  const auto size = static_cast<size_t>(rows) * static_cast<size_t>(length);
  return {std::vector<int32_t>(size, 0), std::vector<int32_t>(size, ignored_target), rows, length};
}

/// Fills a row with the window that begins at token `start`, as far as the tokens reach.
void fill_row(Batch& batch, int64_t row, std::span<const int32_t> tokens, int64_t start) {
  const int64_t count = std::min(batch.length, static_cast<int64_t>(tokens.size()) - 1 - start);
  const auto first = tokens.begin() + start;
  std::copy_n(first, count, batch.inputs.begin() + row * batch.length);
  std::copy_n(first + 1, count, batch.targets.begin() + row * batch.length);
}

}  // namespace

int64_t Batch::target_tokens() const {
  return static_cast<int64_t>(targets.size()) - std::count(targets.begin(), targets.end(), ignored_target);
}

int64_t possible_starts(std::string_view part, int64_t tokens, int64_t T) {
  check_usage(tokens > T, "[dataset] the ", part, " part has ", tokens, " tokens; a context of ", T,
              " needs at least ", static_cast<uint64_t>(T) + 1, ": take a longer text or a smaller context");
  return tokens - T;
}

Split split_tokens(std::vector<int32_t> tokens, int64_t T, double train_fraction) {
  check_batch_shape(1, T);
  check_usage(train_fraction > 0 && train_fraction < 1, "[dataset] train fraction is ", train_fraction,
              "; it must lie between 0 and 1");
  const auto cut = static_cast<int64_t>(static_cast<double>(tokens.size()) * train_fraction);
  Split split;
  split.validation.assign(tokens.begin() + cut, tokens.end());
  tokens.resize(static_cast<size_t>(cut));
  split.train = std::move(tokens);
  possible_starts("training", static_cast<int64_t>(split.train.size()), T);
  possible_starts("validation", static_cast<int64_t>(split.validation.size()), T);
  return split;
}

Batch sample_batch(std::span<const int32_t> tokens, int64_t B, int64_t T, uint64_t seed,
                   uint64_t step_index) {
  check_batch_shape(B, T);
  const int64_t starts = possible_starts("training", static_cast<int64_t>(tokens.size()), T);
  const Generator generator(seed, Stream::data);
  Batch batch = empty_batch(B, T);
  for (int64_t row = 0; row < B; ++row) {
    const auto words = generator.block(step_index * static_cast<uint64_t>(B) + static_cast<uint64_t>(row));
    fill_row(batch, row, tokens, scale_to(uint64_t{words[0]} << 32 | words[1], starts));
  }
  return batch;
}

EvaluationBatches::EvaluationBatches(std::span<const int32_t> tokens, int64_t B, int64_t T,
                                     int64_t most_batches)
    : B_(B), T_(T) {
  check_batch_shape(B, T);
  check_usage(most_batches >= 1, "[dataset] evaluation is to take ", most_batches,
              " batches; it must be at least 1");
  check_usage(tokens.size() >= 2, "[dataset] the evaluated part has ", tokens.size(),
              " tokens; it needs at least 2: an input and its target");
  const auto targets = static_cast<int64_t>(tokens.size()) - 1;
  batches_ = std::min(most_batches, ceil_divide(ceil_divide(targets, T), B));
  windows_ = std::min(batches_ * B, ceil_divide(targets, T));
  tokens_ = tokens.first(static_cast<size_t>(1 + std::min(windows_ * T, targets)));
}

Batch EvaluationBatches::operator[](int64_t index) const {
  check(index >= 0 && index < batches_, "[dataset] evaluation batch ", index, " of ", batches_);
  const int64_t first = index * B_;
  Batch batch = empty_batch(std::min(B_, windows_ - first), T_);
  for (int64_t row = 0; row < batch.rows; ++row) fill_row(batch, row, tokens_, (first + row) * T_);
  return batch;
}

}  // namespace mixgrad
