// Compiled for AVX2 with FMA, whatever the rest of the build is compiled for.
#if defined(__AVX2__) && defined(__FMA__)
#include "tensor/cpu/micro_kernel.h"
#endif
#include "tensor/cpu/micro_kernels.h"

namespace mixgrad {

const MicroKernels* avx2_kernels() {
#if defined(__AVX2__) && defined(__FMA__)
  static constexpr MicroKernels kernels = make_micro_kernels<32, 6>("AVX2");
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kernels : nullptr;
#else
  return nullptr;
#endif
}

}  // namespace mixgrad
