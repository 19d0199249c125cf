// Reductions in a fixed order: along one row by one thread, as vector instructions can follow it, and over
// the partial sums of blocks of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tensor/allocator.h"
#include "tensor/parallel.h"

namespace mixgrad {

/// The sum of `count` numbers, a power of 2: both halves element by element, until one is left. The counts
/// are known to the compiler, which then needs no memory.
template <int count, class T>
T pairwise_sum(const T* x) {
  if constexpr (count == 1) {
    return x[0];
  } else {
    T sums[count / 2];
    for (int lane = 0; lane < count / 2; ++lane) sums[lane] = x[lane] + x[lane + count / 2];
    return pairwise_sum<count / 2>(sums);
  }
}

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
  return pairwise_sum<lanes>(partial);
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

/// y[i, j] = sum over k of x[i, k, j], with x [outer, n, inner] and y [outer, inner].
template <class T>
void sum_axis(int64_t outer, int64_t n, int64_t inner, const T* x, T* y) {
  if (inner == 1) {
    parallel_blocks(outer, rows_per_block(n), [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = row_sum<T>(n, [=](int64_t k) { return x[i * n + k]; });
    });
    return;
  }
  // Rows are read as they lie, a strip of them at a time, whose sums stay in the nearest cache. Where there
  // are many, blocks of them have partial sums.
  constexpr int64_t block = 128, strip = 4096;
  const int64_t blocks = std::max<int64_t>(1, (n + block - 1) / block), strips = (inner + strip - 1) / strip;
  Scratch<T> parts(blocks > 1 ? outer * blocks * inner : 0);
  T* sums = blocks > 1 ? parts.data() : y;  // [outer, blocks, inner]
  const int64_t task_elements = std::min(n, block) * std::min(inner, strip);
  parallel_blocks(outer * blocks * strips, rows_per_block(task_elements), [=](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / strips, i = row / blocks, first = task % strips * strip;
      const int64_t from = row % blocks * block, to = std::min(from + block, n);
      const int64_t width = std::min(strip, inner - first);
      T* sum = sums + row * inner + first;
      std::fill_n(sum, width, T(0));
      for (int64_t k = from; k < to; ++k) {
        const T* terms = x + (i * n + k) * inner + first;
#pragma omp simd
        for (int64_t j = 0; j < width; ++j) sum[j] += terms[j];
      }
    }
  });
  for (int64_t i = 0; blocks > 1 && i < outer; ++i) {
    sum_blocks(blocks, inner, sums + i * blocks * inner, y + i * inner);
  }
}

}  // namespace mixgrad
