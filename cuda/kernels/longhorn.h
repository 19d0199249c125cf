// The kernels of tensor/kernels/longhorn.h on a GPU: the same functions, all pointers to device memory.
#pragma once

#include "tensor/kernels/longhorn.h"

namespace mixgrad {

template <class T>
void longhorn_rate_forward(Cuda, const LonghornShape& shape, const T* k, const T* beta, T* rate);
template <class T>
void longhorn_rate_backward(Cuda, const LonghornShape& shape, const T* k, const T* beta, const T* drate,
                            T* dk, T* dbeta);

}  // namespace mixgrad
