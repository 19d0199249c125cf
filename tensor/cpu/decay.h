// The gates of the recurrence: what a chunk's log decays do to its Gram matrices and rows, and their
// gradients.
#pragma once

#include <algorithm>
#include <cmath>

#include "tensor/allocator.h"
#include "tensor/cpu/tiles.h"
#include "tensor/cpu/vector_exp.h"
#include "tensor/kernels/recurrence.h"
#include "tensor/parallel.h"

namespace mixgrad {

/// b: in every chunk, the sum of the log decays up to and including each token. In double: differences of
/// large sums become exponents.
class CumulativeDecay {
 public:
  /// Without log_decay there is no gate.
  template <class T>
  CumulativeDecay(const RecurrenceShape& s, const ChunkPlan& plan, const T* log_decay)
      : s_(s), gated_(log_decay != nullptr), sums_(gated_ ? s.batch * s.heads * s.keys : 0) {
    if (!gated_) return;
    parallel_tasks(static_cast<int64_t>(plan.chunks.size()), [&](int64_t c) {
      const Chunk& chunk = plan.chunks[c];
      for (int64_t head = 0; head < s.heads; ++head) {
        double* b = at(chunk, head);
        double sum = 0;
        for (int64_t i = 0; i < chunk.length; ++i) {
          const double g = log_decay[((chunk.row * s.keys) + chunk.start + i) * s.heads + head];
          b[i] = sum += std::max(g, least_log_decay);
        }
      }
    });
  }

  /// b of a chunk's tokens; null when there is no gate.
  const double* of(const Chunk& chunk, int64_t head) { return gated_ ? at(chunk, head) : nullptr; }
  /// e^{b_C}
  double of_whole(const Chunk& chunk, int64_t head) {
    return gated_ && chunk.length > 0 ? std::exp(at(chunk, head)[chunk.length - 1]) : 1;
  }

 private:
  double* at(const Chunk& chunk, int64_t head) {
    return sums_.data() + (head * s_.batch + chunk.row) * s_.keys + chunk.start;
  }

  RecurrenceShape s_;
  bool gated_;
  Scratch<double> sums_;
};

/// matrix_ij *= e^{b_i - b_j} in the lower triangle. Only these exponents, none above 0, are formed.
template <class T>
void decay_lower(int64_t length, const double* b, Rows<T> matrix) {
  for (int64_t i = 0; i < length; ++i) {
    T* row = matrix[i];
    const double b_i = b[i];
    for (int64_t j = 0; j <= i; ++j) row[j] *= vector_exp(static_cast<T>(b_i - b[j]));
  }
}

/// The decayed Gram matrix A_ij = scale q_i . k_j e^{b_i - b_j} for j <= i. b may be null: no gate.
template <class T>
void decayed_gram(int64_t length, int64_t dim, T scale, Rows<const T> q, Rows<const T> k, const double* b,
                  Rows<T> gram) {
  lower_product<T>(length, dim, scale, q, k, gram);
  if (b != nullptr) decay_lower(length, b, gram);
}

/// log_decay_t is part of every exponent b_i - b_j with j < t <= i, so to dlog_decay_t is added the sum of
/// gram_ij dgram_ij over those pairs, C^2 terms for all t together. The usual reverse sum of q . dq - k . dk
/// is the same in exact arithmetic but cancels in float, completely where the gates are strong. column: room
/// for C numbers.
template <class T>
void gate_pairs(int64_t length, Rows<const T> gram, Rows<const T> dgram, T* column, T* dlog_decay) {
  std::fill_n(column, length, T(0));
  for (int64_t t = length - 1; t >= 0; --t) {
    const T* a = gram[t];
    const T* da = dgram[t];
#pragma omp simd
    for (int64_t j = 0; j < t; ++j) column[j] += a[j] * da[j];
    dlog_decay[t] += row_sum<T>(t, [=](int64_t j) { return column[j]; });
  }
}

/// From the gradient of the decayed Gram matrix, which is overwritten, to those of q and k, with dq and dk
/// multiplied by `keep` first, and, where there is a gate, of the log decays, which is added.
template <class T>
void decayed_gram_backward(int64_t length, int64_t dim, T scale, Rows<const T> q, Rows<const T> k,
                           const double* b, Rows<const T> gram, Rows<T> dgram, T keep, Rows<T> dq, Rows<T> dk,
                           T* column, T* dlog_decay) {
  if (b != nullptr) {
    gate_pairs<T>(length, gram, dgram, column, dlog_decay);
    decay_lower(length, b, dgram);
  }
  lower_times<T>(length, dim, scale, dgram, k, keep, dq);
  lower_transposed_times<T>(length, dim, scale, dgram, q, keep, dk);
}

/// What is left of the state before the chunk when token i reads it: e^{b_i}.
template <class T>
T decay_since_start(const double* b, int64_t i) {
  return b == nullptr ? T(1) : static_cast<T>(std::exp(b[i]));
}

/// What is left at the chunk's end of what token j wrote: e^{b_C - b_j}.
template <class T>
T decay_until_end(const double* b, int64_t length, int64_t j) {
  return b == nullptr ? T(1) : static_cast<T>(std::exp(b[length - 1] - b[j]));
}

}  // namespace mixgrad
