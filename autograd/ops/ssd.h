// Structured state space duality: the state space model of Mamba-2 as a recurrence over matrix states.
#pragma once

#include "autograd/ops/recurrence.h"

namespace mixgrad {

/// With a step size dt and a log decay g a head,
///
///   S_t = e^{g_t} S_{t-1} + B_t^T (dt_t x_t)     y_t = scale C_t S_t + D x_t
///
/// x [B, T, H, P], dt and g [B, T, H]; B and C [B, T, G, N], G divides H, and the heads of a group share
/// theirs; D [H] or undefined, for 0; initial_state [B, H, N, P] or undefined, for 0. (B, C, D: the names of
/// the paper.) Options and what is returned as those of recurrence(), causal and not normalised. Dao, Gu,
/// 2024 (arXiv 2405.21060), where g_t = dt_t A. Saved for backward: x, dt, D and what recurrence() saves.
/// Throws Error for shapes that do not go together.
Recurrence ssd(const Variable& x, const Variable& dt, const Variable& log_decay, const Variable& B,
               const Variable& C, const Variable& D, const RecurrenceOptions& options,
               const Variable& initial_state = {});

std::vector<GradCase> ssd_cases(CaseInputs& inputs);

}  // namespace mixgrad
