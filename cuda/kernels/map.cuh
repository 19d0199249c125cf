// Elementwise loops, and sums over everything.
#pragma once

#include "cuda/kernels/block.cuh"
#include "tensor/allocator.h"

namespace mixgrad {

constexpr int map_threads = 256;
constexpr int elements_per_thread = 4;
constexpr int64_t map_elements = map_threads * elements_per_thread;

/// Calls f(i) for each i < n. A block owns 1024 consecutive elements, a thread four of them, 256 apart:
/// neighbouring threads touch neighbouring elements, and the four loads do not wait for each other.
template <class F>
__global__ void map_kernel(int64_t n, F f) {
  const int64_t first = blockIdx.x * map_elements + threadIdx.x;
#pragma unroll
  for (int j = 0; j < elements_per_thread; ++j) {
    const int64_t i = first + j * map_threads;
    if (i < n) f(i);
  }
}

template <class F>
void map(const Cuda& device, int64_t n, const F& f) {
  if (n == 0) return;
  launch<map_kernel<F>>(device, {blocks_for(n, map_elements), map_threads}, n, f);
}

/// *result = f(first of the block) + ...
template <class T, class F>
__global__ void sum_kernel(int64_t n, int64_t elements_of_block, F f, T* result) {
  const int64_t first = blockIdx.x * elements_of_block;
  const T total = block_sum<T>(min(elements_of_block, n - first), [&](int64_t i) { return f(first + i); });
  if (threadIdx.x == 0) result[blockIdx.x] = total;
}

/// *y = f(0) + ... + f(n - 1), in two passes of fixed order: blocks of 8192 terms, then the sums of the
/// blocks.
template <class T, class F>
void sum(const Cuda& device, int64_t n, const F& f, T* y) {
  constexpr int64_t terms = 8192;
  const int64_t blocks = std::max<int64_t>(1, blocks_for(n, terms));
  Scratch<T> scratch(blocks, device);
  T* partial = scratch.data();
  launch<sum_kernel<T, F>>(device, {static_cast<unsigned>(blocks), map_threads}, n, terms, f, partial);
  const auto read = [=] __device__(int64_t block) { return partial[block]; };
  launch<sum_kernel<T, decltype(read)>>(device, {1, map_threads}, blocks, blocks, read, y);
}

}  // namespace mixgrad
