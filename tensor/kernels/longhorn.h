// The step sizes of Longhorn, beta_t / (1 + beta_t |k_t|^2).
#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace mixgrad {

struct LonghornShape {
  int64_t tokens;     // B T
  int64_t heads;      // H, of beta and rate
  int64_t key_heads;  // Hk, of k; divides H
  int64_t key_dim;    // dk
};

/// k [tokens, Hk, dk], beta >= 0 and rate [tokens, H].
template <class T>
void longhorn_rate_forward(Cpu, const LonghornShape& shape, const T* k, const T* beta, T* rate);
/// With n = |k_t|^2: dbeta = drate / (1 + beta n)^2, dn = -rate^2 drate, dk = 2 dn k, of all heads of a key
/// head.
template <class T>
void longhorn_rate_backward(Cpu, const LonghornShape& shape, const T* k, const T* beta, const T* drate, T* dk,
                            T* dbeta);

// On a GPU: cuda/kernels/longhorn.cu. All pointers are to device memory.
template <class T>
void longhorn_rate_forward(Cuda, const LonghornShape& shape, const T* k, const T* beta, T* rate);
template <class T>
void longhorn_rate_backward(Cuda, const LonghornShape& shape, const T* k, const T* beta, const T* drate,
                            T* dk, T* dbeta);

}  // namespace mixgrad
