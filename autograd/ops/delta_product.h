// Several steps of the delta rule for each token.
#pragma once

#include "autograd/ops/recurrence.h"

namespace mixgrad {

/// n steps of the delta rule for each token, with their own keys, values and rates, between forgetting and
/// reading:
///
///   S = e^{g_t} S_{t-1}, then for j = 1 to n: S = S + beta_tj k_tj^T (v_tj - k_tj S), then S_t = S
///   o_t = scale q_t S_t
///
/// so that the state's transition is a product of n steps, each of which turns or shrinks it along one key. q
/// [B, T, Hk, dk], k [B, T, n, Hk, dk], v [B, T, n, H, dv], beta [B, T, n, H]; log_decay, initial_state and
/// what is returned as those of delta_rule().
///
/// Computed as the delta rule over n T tokens, at n times its cost; chunks count steps. Siems et al., 2025
/// (arXiv 2502.10297). Throws Error for shapes that do not go together.
Recurrence delta_product(const Variable& q, const Variable& k, const Variable& v, const Variable& beta,
                         const DeltaRuleOptions& options, const Variable& log_decay = {},
                         const Variable& initial_state = {});

std::vector<GradCase> delta_product_cases(CaseInputs& inputs);

}  // namespace mixgrad
