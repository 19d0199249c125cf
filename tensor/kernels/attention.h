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
  /// With causal: [B, Tk], for each token the place where its document begins, of which it sees no key
  /// before. Null: 0 for all.
  const int64_t* begins = nullptr;
  /// With causal, and no more queries than keys: [B, H, Tk], of which the score of query t and key j gets the
  /// difference decay[t + keys - queries] - decay[j], at most 0. In double: differences of large sums. Null:
  /// none.
  const double* decay = nullptr;
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
/// score_sums [B, H, Tk], unless null, gets each key's sum of dS over the queries.
template <class T>
void attention_backward(Cpu, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                        Heads<const T> v, const int32_t* key_mask, Heads<const T> o, const T* maximum,
                        const T* sum, Heads<const T> d_o, Heads<T> dq, Heads<T> dk, Heads<T> dv,
                        double* score_sums = nullptr);

/// begins[b, t] is the last place up to t where documents [B, T] is not 0, and 0 if there is none.
void document_begins(Cpu, int64_t batch, int64_t length, const int32_t* documents, int64_t* begins);

/// decay [B, H, T] = sum of log_decay [B, T, H] over the tokens behind the first of a token's document, up to
/// it. begins as above; null: all are of one document.
template <class T>
void attention_decay_forward(Cpu, int64_t batch, int64_t length, int64_t heads, const T* log_decay,
                             const int64_t* begins, double* decay);
/// dlog_decay of a token: the sum of score_sums over the tokens of its document before it. These are the keys
/// whose scores it weakens, for queries from it on; the scores of earlier queries cancel, since each query's
/// dS add up to 0.
template <class T>
void attention_decay_backward(Cpu, int64_t batch, int64_t length, int64_t heads, const double* score_sums,
                              const int64_t* begins, T* dlog_decay);

// On a GPU: cuda/kernels/attention.cu. All pointers are to device memory.
template <class T>
void attention_forward(Cuda, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                       Heads<const T> v, const int32_t* key_mask, Heads<T> o, T* maximum, T* sum);
template <class T>
void attention_backward(Cuda, const AttentionShape& shape, Heads<const T> q, Heads<const T> k,
                        Heads<const T> v, const int32_t* key_mask, Heads<const T> o, const T* maximum,
                        const T* sum, Heads<const T> d_o, Heads<T> dq, Heads<T> dk, Heads<T> dv,
                        double* score_sums = nullptr);
void document_begins(Cuda, int64_t batch, int64_t length, const int32_t* documents, int64_t* begins);
template <class T>
void attention_decay_forward(Cuda, int64_t batch, int64_t length, int64_t heads, const T* log_decay,
                             const int64_t* begins, double* decay);
template <class T>
void attention_decay_backward(Cuda, int64_t batch, int64_t length, int64_t heads, const double* score_sums,
                              const int64_t* begins, T* dlog_decay);

}  // namespace mixgrad
