// Products of tiles of 16 x 16 elements on the tensor cores, by the 32 lanes of a warp together: operands of
// bfloat16 (8 bits of mantissa, the range of float), sums of float.
//
// A tile is spread over the registers of the lanes. The layout is that of the instruction mma.sync.m16n8k16,
// which the PTX manual gives, so that a kernel can work on a tile of sums where it is: with g = lane / 4 and
// t = 2 (lane % 4), a lane has rows g and g + 8, and of these columns t, t + 1, t + 8 and t + 9. Sums that
// are rounded are in place as the left operand of the next product. (nvcuda::wmma hides its layout, and would
// send each softmax through shared memory.)
//
// In shared memory, rows of a tile start at multiples of 16 bytes. Rows of 16 n elements should be 16 n + 8
// apart: eight neighbouring rows then lie in different banks.
#pragma once

#include "cuda/device_code.h"
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#endif

namespace mixgrad {

using Bfloat16 = __nv_bfloat16;

constexpr int tile_side = 16;

/// Distance between the rows of a tile so wide, a multiple of 16.
constexpr int tile_stride(int width) { return width + 8; }

/// Two values in a word, the first one in its lower half.
__device__ inline uint32_t rounded_pair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  uint32_t word;
  memcpy(&word, &pair, sizeof(word));
  return word;
}

/// The four 8 x 8 quarters of the tile at x, to a word each: columns t and t + 1 of row g of a quarter, or of
/// its transpose. The second one is below the first, or, with `across`, beside it. x is in shared memory.
template <bool transposed, bool across>
__device__ void load_quarters(const Bfloat16* x, int stride, uint32_t* words) {
  const int lane = threadIdx.x % 32;
#if defined(__CUDACC__)
  // Lane l names row l % 8 of quarter l / 8.
  const int second = lane / 8 % 2 * 8;
  const int third = lane / 16 * 8;
  const Bfloat16* row = x + (lane % 8 + (across ? third : second)) * stride + (across ? second : third);
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  }
#else
  if (reinterpret_cast<uintptr_t>(x) % 16 != 0 || stride % 8 != 0) {
    simulator::fail_thread("reads a tile whose rows are not at multiples of 16 bytes");
  }
  const int g = lane / 4;
  const int t = lane % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    const Bfloat16* quarter = x + (across ? i / 2 : i % 2) * 8 * stride + (across ? i % 2 : i / 2) * 8;
    const Bfloat16 first = transposed ? quarter[t * stride + g] : quarter[g * stride + t];
    const Bfloat16 second = transposed ? quarter[(t + 1) * stride + g] : quarter[g * stride + t + 1];
    words[i] = uint32_t{first.bits} | uint32_t{second.bits} << 16;
  }
#endif
}

/// A tile as the left operand of a product.
struct LeftTile {
  uint32_t words[4];
};
/// A tile as the right operand.
struct RightTile {
  uint32_t words[4];
};

/// The tile whose rows are in shared memory, as left operand.
__device__ inline LeftTile left_tile(const Bfloat16* x, int stride) {
  LeftTile tile;
  load_quarters<false, false>(x, stride, tile.words);
  return tile;
}
/// Its transpose.
__device__ inline LeftTile transposed_left_tile(const Bfloat16* x, int stride) {
  LeftTile tile;
  load_quarters<true, true>(x, stride, tile.words);
  return tile;
}
/// The same as right operand.
__device__ inline RightTile right_tile(const Bfloat16* x, int stride) {
  RightTile tile;
  load_quarters<true, false>(x, stride, tile.words);
  return tile;
}
__device__ inline RightTile transposed_right_tile(const Bfloat16* x, int stride) {
  RightTile tile;
  load_quarters<false, true>(x, stride, tile.words);
  return tile;
}

/// c += a b, for 8 columns.
__device__ inline void multiply_add(const uint32_t* a, const uint32_t* b, float* c) {
#if defined(__CUDACC__)
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  simulator::ProductLane lane = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c[0], c[1], c[2], c[3]}};
  simulator::multiply_add(lane);
  std::copy_n(lane.c, 4, c);
#endif
}

/// A tile of sums.
struct SumTile {
  float values[8] = {};

  /// Where in the tile values[i] of this lane is.
  __device__ static int row(int i) { return threadIdx.x % 32 / 4 + i / 2 % 2 * 8; }
  __device__ static int column(int i) { return threadIdx.x % 4 * 2 + i % 2 + i / 4 * 8; }

  /// Adds the product of two tiles.
  __device__ void add_product(const LeftTile& a, const RightTile& b) {
    multiply_add(a.words, b.words, values);
    multiply_add(a.words, b.words + 2, values + 4);
  }
  /// The sums, rounded, as the left operand of another product.
  __device__ LeftTile rounded() const {
    LeftTile tile;
#pragma unroll
    for (int i = 0; i < 4; ++i) tile.words[i] = rounded_pair(values[2 * i], values[2 * i + 1]);
    return tile;
  }
};

}  // namespace mixgrad
