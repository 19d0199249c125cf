// Reductions in a fixed order: along one row by one thread, as vector instructions can follow it, and over
// the partial sums of blocks of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tensor/parallel.h"

namespace mixgrad {

/// Sum of term(i) over i in [0, n), accumulated in T.
///
/// Term i goes into partial sum i mod 16, and these are added pairwise at the end: a compiler may not reorder
/// a sum by itself, so the order that it can vectorise is written out. It depends on n alone, not on
/// alignment or threads.
template <class T, class Term>
T row_sum(int64_t n, const Term& term) {
  constexpr int64_t lanes = 16;
  T partial[lanes] = {};
  const int64_t whole = n / lanes * lanes;
  for (int64_t i = 0; i < whole; i += lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane) partial[lane] += term(i + lane);
  }
  for (int64_t i = whole; i < n; ++i) partial[i - whole] += term(i);
  for (int64_t width = lanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) partial[lane] += partial[lane + width];
  }
  return partial[0];
}

/// The largest of x[0 .. n), passing over NaN; the lowest finite number where there is none or all are -inf.
/// No order of comparisons changes it, so that the compiler may choose one.
template <class T>
T row_maximum(int64_t n, const T* x) {
  T maximum = std::numeric_limits<T>::lowest();
#pragma omp simd reduction(max : maximum)
  for (int64_t i = 0; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;
  return maximum;
}

/// Rows to a block where blocks have partial sums: at most 128 blocks, so that these stay few beside the
/// rows.
inline int64_t rows_per_partial_sum(int64_t rows, int64_t columns) {
  return std::max(rows_per_block(columns), (rows + 127) / 128);
}

/// total[j] = sum over blocks of partial[block, j], in their order; nothing where total is null.
template <class T>
void sum_blocks(int64_t blocks, int64_t columns, const T* partial, T* total) {
  if (total == nullptr) return;
  parallel_blocks(columns, 16384, [=](int64_t begin, int64_t end) {
    std::fill(total + begin, total + end, T(0));
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t j = begin; j < end; ++j) total[j] += partial[block * columns + j];
    }
  });
}

}  // namespace mixgrad
