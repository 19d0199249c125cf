// The kernels of tensor/kernels/softmax.h on a GPU: the same functions, all pointers to device memory.
#pragma once

#include "tensor/kernels/softmax.h"

namespace mixgrad {

template <class T>
void softmax_forward(Cuda, int64_t rows, int64_t columns, const T* x, T* y);
template <class T>
void softmax_backward(Cuda, int64_t rows, int64_t columns, const T* y, const T* dy, T* dx);

template <class T>
void log_softmax_forward(Cuda, int64_t rows, int64_t columns, const T* x, T* y);
template <class T>
void log_softmax_backward(Cuda, int64_t rows, int64_t columns, const T* y, const T* dy, T* dx);

template <class T>
void logsumexp_forward(Cuda, int64_t rows, int64_t columns, const T* x, T* y, T* maximum, T* sum);
template <class T>
void logsumexp_backward(Cuda, int64_t rows, int64_t columns, const T* x, const T* maximum, const T* sum,
                        const T* dy, T* dx);

/// Waits for the device.
TargetSurvey survey_targets(Cuda, CrossEntropyShape shape, const int32_t* targets);

template <class T>
void cross_entropy_forward(Cuda, CrossEntropyShape shape, const T* logits, const int32_t* targets, T* maximum,
                           T* sum, double* nats);
template <class T>
void cross_entropy_backward(Cuda, CrossEntropyShape shape, int64_t counted, const T* logits,
                            const int32_t* targets, const T* maximum, const T* sum, const T* dloss,
                            T* dlogits);

template <class T>
void cross_entropy_in_place(Cuda, CrossEntropyShape shape, T factor, const int32_t* targets, T* logits,
                            double* nats);

}  // namespace mixgrad
