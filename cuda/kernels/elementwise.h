// The kernels of tensor/kernels/elementwise.h on a GPU: the same functions, all pointers to device memory.
#pragma once

#include "tensor/kernels/elementwise.h"

namespace mixgrad {

template <class T>
void add(Cuda, int64_t n, const T* a, const T* b, T* y);
template <class T>
void scale(Cuda, int64_t n, T factor, const T* x, T* y);

template <class F, class T>
void unary_forward(Cuda, int64_t n, const T* x, T* y);
template <class F, class T>
void unary_backward(Cuda, int64_t n, const T* x, const T* dy, T* dx);

template <class T>
void swiglu_forward(Cuda, int64_t n, const T* a, const T* b, T* y);
template <class T>
void swiglu_backward(Cuda, int64_t n, const T* a, const T* b, const T* dy, T* da, T* db);

template <class T>
void broadcast_add(Cuda, const BroadcastShape& shape, const T* a, const T* b, T* y);
template <class T>
void broadcast_multiply(Cuda, const BroadcastShape& shape, const T* a, const T* b, T* y);
template <class T>
void broadcast_reduce(Cuda, const BroadcastShape& shape, int64_t a_elements, const T* dy, T* da);

template <class T>
void sum_all(Cuda, int64_t n, const T* x, T* y);

template <class T>
void dropout(Cuda, int64_t n, float rate, Generator generator, uint64_t first_block, const T* x, T* y);

template <class T>
void mask_rows(Cuda, int64_t rows, int64_t columns, const int32_t* mask, const T* x, T* y);

}  // namespace mixgrad
