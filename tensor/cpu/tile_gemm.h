// One matrix product by one thread: what the kernels here build their tiles of.
#pragma once

#include "tensor/kernels/gemm.h"

namespace mixgrad {

/// C = alpha op(A) op(B) + beta C on the calling thread, a task of a parallel loop.
template <class T>
void tile_gemm(const GemmShape& shape, T alpha, const T* a, const T* b, T beta, T* c);

template <>
void tile_gemm(const GemmShape& shape, float alpha, const float* a, const float* b, float beta, float* c);
template <>
void tile_gemm(const GemmShape& shape, double alpha, const double* a, const double* b, double beta,
               double* c);

}  // namespace mixgrad
