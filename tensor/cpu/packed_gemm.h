// Our own product of float matrices: operands packed into panels where that pays, micro-kernels over them.
#pragma once

#include "tensor/cpu/micro_kernels.h"
#include "tensor/kernels/gemm.h"

namespace mixgrad {

/// The rows of op(A) and the columns of op(B).
inline MatrixLines lines_of_a(const GemmShape& s, const float* a) {
  return s.a == Transpose::yes ? MatrixLines{a, 1, s.lda} : MatrixLines{a, s.lda, 1};
}
inline MatrixLines lines_of_b(const GemmShape& s, const float* b) {
  return s.b == Transpose::yes ? MatrixLines{b, s.ldb, 1} : MatrixLines{b, 1, s.ldb};
}

/// The micro-kernels in use: the best that this CPU has, unless others are set.
const MicroKernels& micro_kernels();
/// For tests and measurements; not while products are computed.
void use_micro_kernels(const MicroKernels& kernels);

/// C = alpha op(A) op(B) + beta C by the calling thread alone. Strides must be given.
void packed_tile_gemm(const GemmShape& shape, float alpha, const float* a, const float* b, float beta,
                      float* c);

/// The same by all threads, with the epilogue. The order of every sum depends on the shape alone.
void packed_gemm(const GemmShape& shape, float alpha, const float* a, const float* b, float beta, float* c,
                 const Epilogue<float>& epilogue);

}  // namespace mixgrad
