// The bfloat16 kernels for AMX, over the instructions that Amx stands for: the CPU's own, or the tests'
// emulation. Intel: Architecture instruction set extensions programming reference, chapter 3.
#pragma once

#include "tensor/cpu/bf16_kernels.h"

namespace mixgrad {

/// What LDTILECFG reads. Here: all eight tiles are 16 rows of 64 bytes.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

template <class Amx>
struct AmxKernels {
  template <int number>
  using Tile = typename Amx::template Tile<number>;

  static void begin() {
    static constexpr TileConfiguration configuration;
    Amx::configure(configuration);
  }
  static void end() { Amx::release(); }

  /// Four tiles of sums; two of a's rows and two of b's columns at a time.
  static void multiply(int64_t pairs, const uint32_t* a, int64_t a_line, const uint32_t* b, float* block) {
    constexpr int64_t side = 16;  // a tile's rows, and its columns of 4 bytes
    constexpr int64_t columns = Bf16Kernels::columns, row_bytes = columns * sizeof(float);
    const int64_t a_line_bytes = a_line * static_cast<int64_t>(sizeof(uint32_t));
    Tile<0> upper_left;
    Tile<1> upper_right;
    Tile<2> lower_left;
    Tile<3> lower_right;
    Tile<4> a_upper;
    Tile<5> a_lower;
    Tile<6> b_left;
    Tile<7> b_right;
    upper_left.zero();
    upper_right.zero();
    lower_left.zero();
    lower_right.zero();
    for (int64_t p = 0; p < pairs; p += side) {
      a_upper.load(a + p, a_line_bytes);
      a_lower.load(a + side * a_line + p, a_line_bytes);
      b_left.load(b + p * columns, row_bytes);
      b_right.load(b + p * columns + side, row_bytes);
      upper_left.add_product(a_upper, b_left);
      upper_right.add_product(a_upper, b_right);
      lower_left.add_product(a_lower, b_left);
      lower_right.add_product(a_lower, b_right);
    }
    upper_left.store(block, row_bytes);
    upper_right.store(block + side, row_bytes);
    lower_left.store(block + side * columns, row_bytes);
    lower_right.store(block + side * columns + side, row_bytes);
  }
};

}  // namespace mixgrad
