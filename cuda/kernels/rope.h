// The kernels of tensor/kernels/rope.h on a GPU: the same functions, all pointers to device memory.
#pragma once

#include "tensor/kernels/rope.h"

namespace mixgrad {

template <class T>
void rope_forward(Cuda, RopeShape shape, const int64_t* positions, Heads<const T> x, Heads<T> y);
template <class T>
void rope_backward(Cuda, RopeShape shape, const int64_t* positions, Heads<const T> dy, Heads<T> dx);

}  // namespace mixgrad
