// What the threads of a block compute together: sums and maxima.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda/device_code.h"
#include "tensor/error.h"

namespace mixgrad {

/// Two values that are joined at once.
template <class T>
struct Pair {
  T first;
  T second;
};

struct Sum {
  template <class T>
  __device__ static T join(T a, T b) {
    return a + b;
  }
  template <class T>
  __device__ static Pair<T> join(Pair<T> a, Pair<T> b) {
    return {a.first + b.first, a.second + b.second};
  }
};

/// Passes over NaN as long as a isn't one.
struct Maximum {
  template <class T>
  __device__ static T join(T a, T b) {
    return b > a ? b : a;
  }
};

template <class T>
__device__ T exchange_lanes(T value, int lane_mask) {
  return __shfl_xor_sync(0xFFFFFFFF, value, lane_mask);
}
template <class T>
__device__ Pair<T> exchange_lanes(Pair<T> value, int lane_mask) {
  return {exchange_lanes(value.first, lane_mask), exchange_lanes(value.second, lane_mask)};
}

/// All lanes' values joined, in every lane. The order is fixed: in step s lanes that differ in bit s are
/// joined.
template <class Op, class T>
__device__ T warp_reduce(T value) {
  for (int step = 16; step > 0; step /= 2) value = Op::join(value, exchange_lanes(value, step));
  return value;
}

/// All threads' values joined, in every thread, for one-dimensional blocks of whole warps. neutral is what
/// changes nothing. One barrier, and 32 sizeof(T) bytes of shared memory, which belong to this Op and T: a
/// second barrier has to stand before they are used again.
template <class Op, class T>
__device__ T block_reduce(T value, T neutral) {
  __shared__ SharedArray<T, 32> of_warps;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  value = warp_reduce<Op>(value);
  if (lane == 0) of_warps[warp] = value;
  __syncthreads();
  value = neutral;
  if (lane < warps) value = of_warps[lane];
  return warp_reduce<Op>(value);  // each warp for itself
}

/// f(0) + f(1) + ... + f(count - 1), in every thread: thread i adds up the terms i, i + blockDim.x, ...
template <class Accumulator, class F>
__device__ Accumulator block_sum(int64_t count, const F& f) {
  Accumulator sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += f(i);
  return block_reduce<Sum>(sum, Accumulator(0));
}

/// The largest f(i), passing over NaN, in every thread; the lowest finite number where there is none or all
/// are -inf.
template <class T, class F>
__device__ T block_maximum(int64_t count, const F& f) {
  constexpr T lowest = std::numeric_limits<T>::lowest();
  T maximum = lowest;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) maximum = Maximum::join(maximum, f(i));
  return block_reduce<Maximum>(maximum, lowest);
}

/// How many blocks of `size` cover `count` items. Throws Error for more than a grid can have.
inline unsigned blocks_for(int64_t count, int64_t size) {
  const int64_t blocks = (count + size - 1) / size;
  check(blocks <= 0x7FFFFFFF, "[cuda] ", count, " items in blocks of ", size, " are too many for a grid");
  return static_cast<unsigned>(blocks);
}

/// Threads of a block that has a row of so many elements: about four elements each, in whole warps.
inline unsigned threads_for_row(int64_t columns) {
  return static_cast<unsigned>(std::clamp<int64_t>((columns + 127) / 128 * 32, 32, 512));
}

}  // namespace mixgrad
