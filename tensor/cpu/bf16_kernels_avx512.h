// The bfloat16 kernels for AVX512_BF16, over the instructions that Avx512 stands for: the CPU's own, or the
// tests' emulation.
#pragma once

#include "tensor/cpu/bf16_kernels.h"

namespace mixgrad {

template <class Avx512>
struct Avx512Bf16Kernels {
  static void begin() {}
  static void end() {}

  /// Sums of a few rows in registers: 8 rows of two make 16 chains of additions, more than their latency.
  static void multiply(int64_t pairs, const uint32_t* a, int64_t a_line, const uint32_t* b, float* block) {
    constexpr int rows = 8, lanes = 16;
    for (int64_t first = 0; first < Bf16Kernels::rows; first += rows) {
      const uint32_t* const a_rows[2] = {a + first * a_line, a + (first + rows / 2) * a_line};
      typename Avx512::Floats left[rows] = {}, right[rows] = {};
      for (int64_t p = 0; p < pairs; ++p) {
        const uint32_t* const from = b + p * Bf16Kernels::columns;
        const typename Avx512::Pairs b_left = Avx512::load(from), b_right = Avx512::load(from + lanes);
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) {
          const typename Avx512::Pairs pair = Avx512::broadcast(a_rows[i / 4] + i % 4 * a_line + p);
          left[i] = Avx512::add_products(left[i], pair, b_left);
          right[i] = Avx512::add_products(right[i], pair, b_right);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        Avx512::store(block + (first + i) * Bf16Kernels::columns, left[i]);
        Avx512::store(block + (first + i) * Bf16Kernels::columns + lanes, right[i]);
      }
    }
  }
};

}  // namespace mixgrad
