// Gaussian mixtures with diagonal covariances: log densities, and the posterior over the components.
//
// One mixture a head. x [N, H, dr], mean and variance [H, K, dr], log_prior [H, K], scores and
// responsibilities [N, H, K], all contiguous. The squares are of differences, not expanded into x^2 - 2 x
// mean
// + mean^2, which cancels in float when |x| is large beside the deviation.
#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace mixgrad {

struct GmmShape {
  int64_t rows;        // N: tokens of all sequences
  int64_t heads;       // H: mixtures
  int64_t components;  // K
  int64_t dim;         // dr
};

/// score[n, h, k] = log N(x[n, h]; mean[h, k], diag variance[h, k])
///                = -1/2 sum over m of (log 2 pi + log variance_m + (x_m - mean_m)^2 / variance_m)
template <class T>
void gmm_log_density_forward(Cpu, GmmShape shape, const T* x, const T* mean, const T* variance, T* score);
template <class T>
void gmm_log_density_backward(Cpu, GmmShape shape, const T* x, const T* mean, const T* variance,
                              const T* dscore, T* dx, T* dmean, T* dvariance);

/// gamma[n, h, k] = softmax over k of (log_prior[h, k] + log density): the probability that x[n, h] came from
/// component k. A component whose log_prior is -inf gets 0, and so do its gradients.
template <class T>
void gmm_responsibilities_forward(Cpu, GmmShape shape, const T* x, const T* mean, const T* variance,
                                  const T* log_prior, T* gamma);
template <class T>
void gmm_responsibilities_backward(Cpu, GmmShape shape, const T* x, const T* mean, const T* variance,
                                   const T* gamma, const T* dgamma, T* dx, T* dmean, T* dvariance,
                                   T* dlog_prior);

/// The part of gmm_responsibilities_forward() that doesn't depend on x, for who calls it with the same
/// parameters many times: prepare() once, and prepared() gives the same bits. On a CPU only: the kernel for
/// GPUs has nothing to prepare.
template <class T>
int64_t gmm_prepared_size(Cpu, GmmShape shape);  // in elements; shape.rows is of no account
template <class T>
void gmm_prepare(Cpu, GmmShape shape, const T* mean, const T* variance, const T* log_prior, T* prepared);
template <class T>
void gmm_responsibilities_prepared(Cpu, GmmShape shape, const T* x, const T* mean, const T* variance,
                                   const T* prepared, T* gamma);

// On a GPU: cuda/kernels/gmm.cu. All pointers are to device memory.
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
