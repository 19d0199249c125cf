// Compiled for AVX512_BF16, whatever the rest of the build is compiled for.
#include "tensor/cpu/bf16_kernels.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

namespace mixgrad {

namespace {

void nothing() {}

/// Sums of a few rows in registers: 8 rows of two make 16 chains of additions, more than their latency.
void multiply(int64_t pairs, const uint32_t* a, int64_t a_line, const uint32_t* b, float* block) {
  constexpr int rows = 8, lanes = 16;
  for (int64_t first = 0; first < Bf16Kernels::rows; first += rows) {
    const uint32_t* const a_rows[2] = {a + first * a_line, a + (first + rows / 2) * a_line};
    __m512 left[rows] = {}, right[rows] = {};
    for (int64_t p = 0; p < pairs; ++p) {
      const uint32_t* const from = b + p * Bf16Kernels::columns;
      const __m512bh b_left = reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
      const __m512bh b_right = reinterpret_cast<__m512bh>(_mm512_loadu_si512(from + lanes));
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const auto pair = _mm512_set1_epi32(static_cast<int>(a_rows[i / 4][i % 4 * a_line + p]));
        left[i] = _mm512_dpbf16_ps(left[i], reinterpret_cast<__m512bh>(pair), b_left);
        right[i] = _mm512_dpbf16_ps(right[i], reinterpret_cast<__m512bh>(pair), b_right);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      _mm512_storeu_ps(block + (first + i) * Bf16Kernels::columns, left[i]);
      _mm512_storeu_ps(block + (first + i) * Bf16Kernels::columns + lanes, right[i]);
    }
  }
}

}  // namespace

const Bf16Kernels* avx512_bf16_kernels() {
  static constexpr Bf16Kernels kernels{"AVX512_BF16", nothing, nothing, multiply};
  static const bool usable = __builtin_cpu_supports("avx512bf16");
  return usable ? &kernels : nullptr;
}

}  // namespace mixgrad

#else

namespace mixgrad {
const Bf16Kernels* avx512_bf16_kernels() { return nullptr; }
}  // namespace mixgrad

#endif
