// Compiled for AVX-512, whatever the rest of the build is compiled for.
#ifdef __AVX512F__
#include "tensor/cpu/micro_kernel.h"
#endif
#include "tensor/cpu/micro_kernels.h"

namespace mixgrad {

const MicroKernels* avx512_kernels() {
#ifdef __AVX512F__
  static constexpr MicroKernels kernels = make_micro_kernels<64, 14>("AVX-512");
  return __builtin_cpu_supports("avx512f") ? &kernels : nullptr;
#else
  return nullptr;
#endif
}

}  // namespace mixgrad
