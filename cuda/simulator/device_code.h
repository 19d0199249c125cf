// The names that CUDA gives to device code, for kernels that a C++ compiler builds to run in the simulator.
//
// Kernels are compiled with -fsanitize=thread, which makes the compiler call a function at each load and
// store; those functions are the simulator's own (accesses.cpp), not ThreadSanitizer's.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // only of SharedArray: see cuda/device_code.h

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)
      : x(x_size), y(y_size), z(z_size) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};

// Variables, so that a debugger shows them and breakpoints can ask for them.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace mixgrad::simulator {

/// Where in the source a barrier stands. std::source_location would do, but clang 14 does not take that of
/// g++.
struct CallSite {
  const char* file = "";
  int line = 0;

  static constexpr CallSite here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const CallSite& other) const {
    return line == other.line && std::string_view(file) == other.file;
  }
};

/// What the threads of a block do together.
enum class Meeting { none, block_barrier, warp_barrier, shuffle, ballot, product };

/// Waits for the block; returns in how many threads predicate isn't 0.
int meet_block(int predicate, CallSite site);
/// Waits for the lanes of mask. A shuffle returns the value of lane `source`, a ballot those whose value
/// isn't 0.
uint64_t meet_warp(Meeting meeting, unsigned mask, uint64_t value, int source, CallSite site);
int lane_of_this_thread();

/// What a lane brings to the instruction mma.sync.m16n8k16 of bfloat16, C += A B: its registers of A [16,
/// 16], B [16, 8] and C [16, 8], laid out as the PTX manual says. With g = lane / 4 and t = 2 (lane % 4),
/// word i of a is row g + 8 (i % 2), columns t and t + 1, and 8 more with i / 2; word i of b is rows t + 8 i
/// and one more of column g; c[i] is row g + 8 (i / 2), column t + i % 2.
struct ProductLane {
  uint32_t a[4];
  uint32_t b[2];
  float c[4];
};
/// All lanes of the warp together; c becomes the sum.
void multiply_add(ProductLane& lane, CallSite site = CallSite::here());

/// Adds in one step; returns what was there. T is int, unsigned, float or double.
template <class T>
T atomic_add(T* address, T value);

/// A __shared__ variable's place in the current block's shared memory.
struct SharedSlot {
  uint32_t block = 0;
  void* data = nullptr;
};
void* shared_array(SharedSlot& slot, int64_t bytes);
void* dynamic_shared_array();

template <class T>
T shuffle(unsigned mask, T value, int source, CallSite site) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = meet_warp(Meeting::shuffle, mask, bits, source, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace mixgrad::simulator

inline void __syncthreads(mixgrad::simulator::CallSite site = mixgrad::simulator::CallSite::here()) {
  mixgrad::simulator::meet_block(0, site);
}
inline int __syncthreads_count(int predicate,
                               mixgrad::simulator::CallSite site = mixgrad::simulator::CallSite::here()) {
  return mixgrad::simulator::meet_block(predicate, site);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFF,
                       mixgrad::simulator::CallSite site = mixgrad::simulator::CallSite::here()) {
  mixgrad::simulator::meet_warp(mixgrad::simulator::Meeting::warp_barrier, mask, 0, 0, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              mixgrad::simulator::CallSite site = mixgrad::simulator::CallSite::here()) {
  using namespace mixgrad::simulator;
  return static_cast<unsigned>(meet_warp(Meeting::ballot, mask, predicate != 0, 0, site));
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source,
              mixgrad::simulator::CallSite site = mixgrad::simulator::CallSite::here()) {
  return mixgrad::simulator::shuffle(mask, value, source & 31, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask,
                  mixgrad::simulator::CallSite site = mixgrad::simulator::CallSite::here()) {
  return mixgrad::simulator::shuffle(mask, value, mixgrad::simulator::lane_of_this_thread() ^ lane_mask,
                                     site);
}
/// The value of the lane `delta` below; a lane that has none below keeps its own.
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta,
                 mixgrad::simulator::CallSite site = mixgrad::simulator::CallSite::here()) {
  const int lane = mixgrad::simulator::lane_of_this_thread();
  const int source = lane - static_cast<int>(delta);
  return mixgrad::simulator::shuffle(mask, value, source >= 0 ? source : lane, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta,
                   mixgrad::simulator::CallSite site = mixgrad::simulator::CallSite::here()) {
  const int lane = mixgrad::simulator::lane_of_this_thread();
  const int source = lane + static_cast<int>(delta);
  return mixgrad::simulator::shuffle(mask, value, source < 32 ? source : lane, site);
}

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return mixgrad::simulator::atomic_add(address, value);
}

/// The upper half of a float, rounded to nearest, ties to even.
struct __nv_bfloat16 {
  uint16_t bits;
};
inline __nv_bfloat16 __float2bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {0x7FFF};
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}
inline float __bfloat162float(__nv_bfloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
/// Two in a word, the first one in its lower half.
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16(x), __float2bfloat16(y)};
}

inline int __popc(unsigned bits) { return std::popcount(bits); }
/// Of numbers by value, as in CUDA: a reference to a constant would be one to the host's memory.
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
