// Compiled for AVX512_BF16, whatever the rest of the build is compiled for.
#include "tensor/cpu/bf16_kernels_avx512.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

namespace mixgrad {

namespace {

/// The instructions themselves.
struct Avx512 {
  using Floats = __m512;
  using Pairs = __m512bh;

  static Pairs load(const uint32_t* pairs) { return reinterpret_cast<Pairs>(_mm512_loadu_si512(pairs)); }
  static Pairs broadcast(const uint32_t* pair) {
    return reinterpret_cast<Pairs>(_mm512_set1_epi32(static_cast<int>(*pair)));
  }
  static Floats add_products(Floats sums, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sums, a, b); }
  static void store(float* to, Floats sums) { _mm512_storeu_ps(to, sums); }
};

}  // namespace

const Bf16Kernels* avx512_bf16_kernels() {
  using Kernels = Avx512Bf16Kernels<Avx512>;
  static constexpr Bf16Kernels kernels{"AVX512_BF16", Kernels::begin, Kernels::end, Kernels::multiply};
  static const bool usable = __builtin_cpu_supports("avx512bf16");
  return usable ? &kernels : nullptr;
}

}  // namespace mixgrad

#else

namespace mixgrad {
const Bf16Kernels* avx512_bf16_kernels() { return nullptr; }
}  // namespace mixgrad

#endif
