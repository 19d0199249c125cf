// The kernels of tensor/kernels/optimizer.h on a GPU: the same functions, all pointers to device memory.
#pragma once

#include "tensor/kernels/optimizer.h"

namespace mixgrad {

template <class T>
void adamw(Cuda, int64_t n, const AdamWStep& step, const T* g, T* p, T* m, T* v);

/// Waits for the device.
template <class T>
double sum_of_squares(Cuda, int64_t n, const T* x);

}  // namespace mixgrad
