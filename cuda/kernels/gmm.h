// The kernels of tensor/kernels/gmm.h on a GPU: the same functions, all pointers to device memory.
#pragma once

#include "tensor/kernels/gmm.h"

namespace mixgrad {

template <class T>
void gmm_log_density_forward(Cuda, GmmShape shape, const T* x, const T* mean, const T* variance, T* score);
template <class T>
void gmm_log_density_backward(Cuda, GmmShape shape, const T* x, const T* mean, const T* variance,
                              const T* dscore, T* dx, T* dmean, T* dvariance);

template <class T>
void gmm_responsibilities_forward(Cuda, GmmShape shape, const T* x, const T* mean, const T* variance,
                                  const T* log_prior, T* gamma);
template <class T>
void gmm_responsibilities_backward(Cuda, GmmShape shape, const T* x, const T* mean, const T* variance,
                                   const T* gamma, const T* dgamma, T* dx, T* dmean, T* dvariance,
                                   T* dlog_prior);

}  // namespace mixgrad
