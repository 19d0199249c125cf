// Softmax attention that never holds the matrix of scores. Dao et al., FlashAttention, 2022; Dao,
// FlashAttention-2, 2023.
#pragma once

#include <cstdint>

#include "tensor/device.h"
#include "tensor/kernels/heads.h"

namespace mixgrad {

/// o[t] = sum over the keys j that query t sees of softmax_j(scale q[t] . k[j]) v[j], for each head; head h
/// reads key head h / (heads / key_heads). A query that sees no key gives 0, with zero gradients.
struct AttentionShape {
  int64_t batch, queries, keys, heads;
  int64_t key_heads;  // divides heads
  int64_t key_dim, value_dim;
  /// Query t sees the keys j <= t + keys - queries: the last query sees all.
  bool causal = false;
  /// With causal: of these, the newest `window`. 0: all.
  int64_t window = 0;
  double scale = 1;
};

/// q [B, Tq, H, dk], k [B, Tk, Hkv, dk], v [B, Tk, Hkv, dv], o [B, Tq, H, dv]. key_mask [B, Tk]: no query
/// sees a key whose entry is 0, and its k and v are never read; null: none is masked. For the backward pass:
/// maximum, sum [B, H, Tq], each row's largest score and sum of exp(score - maximum). Both, and not maximum +
/// log(sum), which has too few digits for small differences where scores are large.
template <class T>
void attention_forward(Cpu, const AttentionShape& shape, Heads<const T> q, Heads<const T> k, Heads<const T> v,
                       const int32_t* key_mask, Heads<T> o, T* maximum, T* sum);

/// dq, dk, dv, shaped like q, k, v, from d_o, shaped like o. With P the probabilities:
///   delta[t] = d_o[t] . o[t],  dS = P (d_o v^T - delta),  dq = scale dS k,  dk = scale dS^T q,  dv = P^T d_o
template <class T>
void attention_backward(Cpu, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                        Heads<const T> v, const int32_t* key_mask, Heads<const T> o, const T* maximum,
                        const T* sum, Heads<const T> d_o, Heads<T> dq, Heads<T> dk, Heads<T> dv);

// On a GPU: cuda/kernels/attention.cu. All pointers are to device memory.
template <class T>
void attention_forward(Cuda, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                       Heads<const T> v, const int32_t* key_mask, Heads<T> o, T* maximum, T* sum);
template <class T>
void attention_backward(Cuda, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                        Heads<const T> v, const int32_t* key_mask, Heads<const T> o, const T* maximum,
                        const T* sum, Heads<const T> d_o, Heads<T> dq, Heads<T> dk, Heads<T> dv);

}  // namespace mixgrad
