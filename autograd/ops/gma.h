// Gaussian Mixture Attention.
#pragma once

#include "autograd/ops/gmm.h"
#include "autograd/ops/recurrence.h"

namespace mixgrad {

struct GmaOptions {
  bool causal = true;       // token t sees tokens up to t; else all keys, and T may differ from Tk
  double eps = 1e-6;        // added to each output's denominator
  double floor = 1e-4;      // of the variances
  int64_t chunk = 64;       // tokens that are computed at once
  bool final_state = true;  // whether the caller wants the state after the last token
  Tensor documents = {};    // int32 [B, T], not 0 where a document begins: it starts with empty slots
};

/// Queries and keys are routed to K Gaussians, one mixture a head for both; values are written to the
/// components by the keys' responsibilities and read by the queries':
///
///   gamma(x) = softmax over k of (log_softmax(alpha)_k + log N(x; mean_k, diag (softplus(omega_k) + floor)))
///   S_t = S_{t-1} + gamma(k_t)^T v_t    z_t = z_{t-1} + gamma(k_t)
///   o_t = gamma(q_t) S_t / (gamma(q_t) . z_t + eps)
///
/// q [B, T, H, dr], k [B, Tk, H, dr], v [B, Tk, H, dv], mean and omega [H, K, dr], alpha [H, K]. key_mask
/// int32 [B, Tk]: keys where it is 0 write nothing, whatever they are; undefined: all write. initial_state
/// [B, H, K, dv] and initial_normaliser [B, H, K]: both or neither. Output [B, T, H, dv], a convex
/// combination of values but for eps.
///
/// Time and memory are linear in T: O(T K (dr + dv)) and O(T (K + dv)) a head. Saved for backward: the
/// responsibilities, and what recurrence() saves. arXiv 2606.18283; gradients in nn/mixers/gma/gma.md.
Recurrence gma(const Variable& q, const Variable& k, const Variable& v, const Variable& mean,
               const Variable& omega, const Variable& alpha, const GmaOptions& options,
               const Tensor& key_mask = {}, const Variable& initial_state = {},
               const Variable& initial_normaliser = {});

/// The same with variances and priors as gmm_parameters() gives them; without a use for options.floor.
Recurrence gma(const Variable& q, const Variable& k, const Variable& v, const Variable& mean,
               const GmmParameters& mixture, const GmaOptions& options, const Tensor& key_mask = {},
               const Variable& initial_state = {}, const Variable& initial_normaliser = {});

std::vector<GradCase> gma_cases(CaseInputs& inputs);

}  // namespace mixgrad
