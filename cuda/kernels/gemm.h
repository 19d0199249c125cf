// The kernels of tensor/kernels/gemm.h on a GPU: the same functions, all pointers to device memory. Floats
// are multiplied as they are, whatever matrix_precision() says.
#pragma once

#include "tensor/kernels/gemm.h"

namespace mixgrad {

template <class T>
void gemm(Cuda, GemmShape shape, T alpha, const T* a, const T* b, T beta, T* c,
          const Epilogue<T>& epilogue = {});
template <class T>
void gemm_batched(Cuda, GemmShape shape, GemmBatch batch, T alpha, const T* a, const T* b, T beta, T* c);

template <class T>
void bias_backward(Cuda, int64_t rows, int64_t columns, const T* dy, T* dbias);

}  // namespace mixgrad
