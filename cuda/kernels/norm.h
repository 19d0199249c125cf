// The kernels of tensor/kernels/norm.h on a GPU: the same functions, all pointers to device memory.
#pragma once

#include "tensor/kernels/norm.h"

namespace mixgrad {

template <class T>
void layer_norm_forward(Cuda, int64_t rows, int64_t columns, double eps, const T* x, const T* weight,
                        const T* bias, T* y, T* mean, T* inverse_deviation);
template <class T>
void layer_norm_backward(Cuda, int64_t rows, int64_t columns, const T* x, const T* weight, const T* mean,
                         const T* inverse_deviation, const T* dy, T* dx, T* dweight, T* dbias);

template <class T>
void rms_norm_forward(Cuda, int64_t rows, int64_t columns, double eps, const T* x, const T* weight, T* y,
                      T* inverse_deviation);
template <class T>
void rms_norm_backward(Cuda, int64_t rows, int64_t columns, const T* x, const T* weight,
                       const T* inverse_deviation, const T* dy, T* dx, T* dweight);

template <class F, class T>
void gated_rms_norm_forward(Cuda, int64_t rows, int64_t columns, GateOrder order, double eps, const T* x,
                            const T* gate, const T* weight, T* y, T* inverse_deviation);
template <class F, class T>
void gated_rms_norm_backward(Cuda, int64_t rows, int64_t columns, GateOrder order, const T* x, const T* gate,
                             const T* weight, const T* inverse_deviation, const T* dy, T* dx, T* dgate,
                             T* dweight);

template <class T>
void l2_normalize_forward(Cuda, int64_t rows, int64_t columns, double eps, const T* x, T* y,
                          T* inverse_length);
template <class T>
void l2_normalize_backward(Cuda, int64_t rows, int64_t columns, const T* x, const T* inverse_length,
                           const T* dy, T* dx);

}  // namespace mixgrad
