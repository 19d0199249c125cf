// OpenBLAS, called directly: what our own matrix products are held against.
#pragma once

#include "tensor/kernels/gemm.h"

namespace mixgrad {

/// While it lives, OpenBLAS uses so many of its own threads in a product; else one, as our kernels' tasks
/// expect.
class OpenblasThreads {
 public:
  explicit OpenblasThreads(int threads);
  ~OpenblasThreads();
  OpenblasThreads(const OpenblasThreads&) = delete;
  OpenblasThreads& operator=(const OpenblasThreads&) = delete;
};

/// C = op(A) op(B) in float, row-major, the rows without gaps. Sizes must fit into 32 bits.
void openblas_gemm(const GemmShape& shape, const float* a, const float* b, float* c);

}  // namespace mixgrad
