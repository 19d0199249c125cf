// Softmax attention.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

struct AttentionOptions {
  /// Query t sees the keys j <= t + Tk - Tq only: the last query sees all.
  bool causal = false;
  /// With causal: of these, only the newest `window`. 0: all.
  int64_t window = 0;
  /// Factor of the scores. 0: dk^-1/2.
  double scale = 0;
  /// With causal: int32 [B, Tk], not 0 where a document begins, of which no query sees what stands before.
  /// Undefined: nowhere.
  Tensor documents = {};
};

/// o[b, t, h] = sum over j of softmax_j(scale q[b, t, h] . k[b, j, g]) v[b, j, g], over the keys j that query
/// t sees, for each head h and its key head g = h / (H / Hkv). A query that sees no key gives 0, with zero
/// gradients. Vaswani et al., Attention is all you need, 2017, equation 1; grouped heads: Ainslie et al.,
/// GQA, 2023.
///
/// q [B, Tq, H, dk], k [B, Tk, Hkv, dk], v [B, Tk, Hkv, dv], o [B, Tq, H, dv]; q, k and v may be views that
/// are narrowed along B or T, such as the filled part of a cache. key_mask int32 [B, Tk]: keys whose entry is
/// 0 are seen by no query, and nothing of them is read; undefined: none is masked.
///
/// log_decay <= 0 [B, Tk, H], with causal: the score of a pair gets the sum of the log decays of the tokens
/// behind the key, up to the query, so that the weight of a key is multiplied by a factor for each of them.
/// Undefined: none. Lin et al.: Forgetting Transformer, 2025 (arXiv 2503.02130).
///
/// Saved for backward: q, k, v, o, two numbers a row [B, H, Tq], and the running sums of log decays, in
/// double; the scores are never held at once. With n visible pairs of query and key, 2 B H n (dk + dv) FLOPs
/// forward; 2 B H n (4 dk + 3 dv) backward, which computes the scores again, once for dq and once for dk and
/// dv. Throws Error when shapes or types do not go together; UsageError when Hkv does not divide H, and for a
/// window, documents or log decays without causal.
Variable attention(const Variable& q, const Variable& k, const Variable& v, const AttentionOptions& options,
                   const Tensor& key_mask = {}, const Variable& log_decay = {});

std::vector<GradCase> attention_cases(CaseInputs& inputs);

}  // namespace mixgrad
