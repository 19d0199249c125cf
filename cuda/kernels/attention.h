// The kernels of tensor/kernels/attention.h on a GPU: the same functions, all pointers to device memory.
#pragma once

#include "tensor/kernels/attention.h"

namespace mixgrad {

template <class T>
void attention_forward(Cuda, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                       Heads<const T> v, const int32_t* key_mask, Heads<T> o, T* maximum, T* sum);
template <class T>
void attention_backward(Cuda, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                        Heads<const T> v, const int32_t* key_mask, Heads<const T> o, const T* maximum,
                        const T* sum, Heads<const T> d_o, Heads<T> dq, Heads<T> dk, Heads<T> dv);

}  // namespace mixgrad
