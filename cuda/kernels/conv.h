// The kernels of tensor/kernels/conv.h on a GPU: the same functions, all pointers to device memory.
#pragma once

#include "tensor/kernels/conv.h"

namespace mixgrad {

template <class T>
void causal_conv1d_forward(Cuda, ConvShape shape, const T* x, const T* weight, const T* bias,
                           const T* initial_state, T* y, T* final_state, const int32_t* documents = nullptr);
template <class T>
void causal_conv1d_backward(Cuda, ConvShape shape, const T* x, const T* weight, const T* bias,
                            const T* initial_state, const T* dy, const T* dfinal_state, T* dx, T* dweight,
                            T* dbias, T* dinitial_state, const int32_t* documents = nullptr);

}  // namespace mixgrad
