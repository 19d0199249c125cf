// Compiled as the rest of the build.
#include "tensor/cpu/micro_kernel.h"

namespace mixgrad {

const MicroKernels* portable_kernels() {
  static constexpr MicroKernels kernels = make_micro_kernels<16, 6>("portable");
  return &kernels;
}

}  // namespace mixgrad
