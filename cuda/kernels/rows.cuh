// Kernels over rows: a thread has the columns threadIdx.x, threadIdx.x + blockDim.x, ... of each row of its
// block.
#pragma once

#include "cuda/kernels/block.cuh"
#include "tensor/allocator.h"

namespace mixgrad {

/// Calls f(j) for the columns of this thread.
template <class F>
__device__ void for_my_columns(int64_t columns, const F& f) {
  for (int64_t j = threadIdx.x; j < columns; j += blockDim.x) f(j);
}

/// The rows of one block of a backward kernel, and its sums over them.
struct Stretch {
  int64_t rows, columns;
  int64_t rows_of_block;
  bool shared_sums;

  __device__ int64_t begin() const { return blockIdx.x * rows_of_block; }
  __device__ int64_t end() const { return min(rows, begin() + rows_of_block); }

  /// The block's sums, `kinds` for each column, all zero: kind k of column j is at k columns + j.
  template <class T>
  __device__ T* begin_sums(int kinds, T* partial) const {
    T* sums = shared_sums ? dynamic_shared<T>() : partial + blockIdx.x * kinds * columns;
    for_my_columns(columns, [=, *this](int64_t j) {
      for (int kind = 0; kind < kinds; ++kind) sums[kind * columns + j] = 0;
    });
    return sums;
  }
  template <class T>
  __device__ void end_sums(int kinds, const T* sums, T* partial) const {
    if (!shared_sums) return;
    for_my_columns(columns, [=, *this](int64_t j) {
      for (int kind = 0; kind < kinds; ++kind) {
        partial[(blockIdx.x * kinds + kind) * columns + j] = sums[kind * columns + j];
      }
    });
  }
};

/// total[j] = sum over blocks of partial[block, j], partial rows being `stride` apart.
template <class T>
__global__ void sum_partials(int64_t blocks, int64_t stride, int64_t columns, const T* partial, T* total) {
  const int64_t j = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (j >= columns) return;
  T sum = 0;
  for (int64_t block = 0; block < blocks; ++block) sum += partial[block * stride + j];
  total[j] = sum;
}

/// Launches kernel(stretch, partial, arguments...), of which each block leaves `kinds` sums a column in
/// partial [blocks, kinds, columns], and adds these up into totals[kind], null where it isn't wanted.
template <auto kernel, class T, class... Args>
void sum_over_rows(const Cuda& device, int64_t rows, int64_t columns, int kinds, T* const* totals,
                   Args... arguments) {
  constexpr int64_t most_blocks = 512;
  constexpr int64_t most_shared_bytes = 96 * 1024;  // two blocks a multiprocessor
  if (columns == 0) return;
  const int64_t rows_of_block = std::max<int64_t>(1, (rows + most_blocks - 1) / most_blocks);
  const int64_t blocks = (rows + rows_of_block - 1) / rows_of_block;
  const int64_t bytes = kinds * columns * static_cast<int64_t>(sizeof(T));
  const bool shared = bytes <= most_shared_bytes;
  Scratch<T> scratch(blocks * kinds * columns, device);
  T* partial = scratch.data();
  if (blocks > 0) {
    launch<kernel>(device, {static_cast<unsigned>(blocks), threads_for_row(columns), shared ? bytes : 0},
                   Stretch{rows, columns, rows_of_block, shared}, partial, arguments...);
  }
  for (int kind = 0; kind < kinds; ++kind) {
    if (totals[kind] == nullptr) continue;
    launch<sum_partials<T>>(device, {blocks_for(columns, 256), 256}, blocks, kinds * columns, columns,
                            partial + kind * columns, totals[kind]);
  }
}

}  // namespace mixgrad
