// Longhorn: the delta rule with the step of an exact, proximal solution.
#pragma once

#include "autograd/ops/recurrence.h"

namespace mixgrad {

/// Each state is the minimiser over S of |S - S_{t-1}|^2 + beta_t |k_t S - v_t|^2, which is a step of the
/// delta rule,
///
///   S_t = S_{t-1} + rate_t k_t^T (v_t - k_t S_{t-1}) with rate_t = beta_t / (1 + beta_t |k_t|^2)
///
/// Since rate_t |k_t|^2 < 1 it is stable for keys of any length and every beta >= 0. Arguments and what is
/// returned are those of delta_rule(). Saved for backward: k, beta, and what delta_rule() saves. Liu et al.,
/// 2024 (arXiv 2407.14207), without its diagonal approximation. Throws Error for shapes that do not go
/// together.
Recurrence longhorn(const Variable& q, const Variable& k, const Variable& v, const Variable& beta,
                    const DeltaRuleOptions& options, const Variable& initial_state = {});

/// beta_t / (1 + beta_t |k_t|^2): k [B, T, Hk, dk], beta and the rates [B, T, H], where Hk divides H. Saved
/// for backward: k, beta. Throws Error for other shapes.
Variable longhorn_rate(const Variable& k, const Variable& beta);

std::vector<GradCase> longhorn_cases(CaseInputs& inputs);

}  // namespace mixgrad
