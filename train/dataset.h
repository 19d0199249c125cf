// The data of next-token training: a training and a validation part, random training batches, and the batches
// of an evaluation. Tokens of a part are one long sequence; the target of every token is the token after it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "autograd/ops/softmax.h"

namespace mixgrad {

/// A corpus in two parts, in its own order.
struct Split {
  std::vector<int32_t> train, validation;
};

/// Sequences and what follows each of their tokens.
struct Batch {
  std::vector<int32_t> inputs;   ///< [rows, length]
  std::vector<int32_t> targets;  ///< [rows, length]; ignored_target where there is none
  int64_t rows = 0, length = 0;

  /// How many targets are not ignored_target.
  int64_t target_tokens() const;
};

/// In how many places a window of T inputs and their targets fits into a part of so many tokens: tokens - T,
/// so the last token is reached as a target, never as an input. Throws UsageError that names the part when
/// there is none.
int64_t possible_starts(std::string_view part, int64_t tokens, int64_t T);

/// Cuts the tokens at int(size * train_fraction), as nanoGPT does: the first part trains, the rest validates.
/// Throws UsageError when the fraction is outside (0, 1), T < 1, or a part has fewer than T + 1 tokens.
Split split_tokens(std::vector<int32_t> tokens, int64_t T, double train_fraction = 0.9);

/// B random windows of T tokens, [B, T], drawn with replacement. Row b is a pure function of the seed and of
/// the running number of the sequence, step_index * B + b, so a resumed run draws what the uninterrupted one
/// would have drawn and keeps no state. step_index counts batches, so every micro-batch of a step has its
/// own. A start is the high half of a 64-bit random word times the number of starts: no start's probability
/// differs from any other's by more than 2^-64, which for n starts is a relative bias of n / 2^64. Throws
/// UsageError when B < 1, T < 1 or the tokens are fewer than T + 1.
Batch sample_batch(std::span<const int32_t> tokens, int64_t B, int64_t T, uint64_t seed, uint64_t step_index);

/// The batches that evaluate a part from its beginning: consecutive windows of T inputs that don't overlap, B
/// windows a batch. Every token but the first is a target exactly once. The last window is padded with input
/// 0 and ignored_target; the last batch has only the rows that are left.
class EvaluationBatches {
 public:
  /// At most `most_batches` batches; all of them by default. The tokens must outlive this object. Throws
  /// UsageError when B, T or most_batches < 1, or when there are fewer than 2 tokens.
  EvaluationBatches(std::span<const int32_t> tokens, int64_t B, int64_t T,
                    int64_t most_batches = std::numeric_limits<int64_t>::max());

  int64_t size() const { return batches_; }
  /// Batch `index`, from 0 to size() - 1. Throws Error for any other.
  Batch operator[](int64_t index) const;
  /// The targets of all batches in order: what to divide a summed loss by (in tokens, or in the bytes they
  /// stand for).
  std::span<const int32_t> targets() const { return tokens_.subspan(1); }

 private:
  std::span<const int32_t> tokens_;  ///< only those that the batches hold
  int64_t B_, T_;
  int64_t windows_, batches_;
};

}  // namespace mixgrad
