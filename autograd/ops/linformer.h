// Linformer's attention: softmax attention over a fixed number of mixtures of keys and values.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

/// o_t = softmax over r of (scale q_t . k'_r) v'_r with k'_r = sum over j of E_jr k_j, v'_r = sum over j of
/// F_jr v_j: every query sees all keys, by way of R mixtures of them.
///
/// q and k [B, T, H, dk], v [B, T, H, dv]; E and F [N, R], N >= T, of which the first T rows are used; F
/// undefined: E serves both. key_mask int32 [B, T]: keys whose entry is 0 are in no mixture; undefined: none
/// is masked. O(T R (dk + dv)) FLOPs a head. Saved for backward: the inputs, the mixtures, and for each
/// query or key of a head its R scores and its rows of E and F. Wang et al., 2020 (arXiv 2006.04768).
/// Throws Error for shapes that do not go together, UsageError for more than N tokens.
Variable linformer(const Variable& q, const Variable& k, const Variable& v, const Variable& E,
                   const Variable& F, double scale, const Tensor& key_mask = {});

std::vector<GradCase> linformer_cases(CaseInputs& inputs);

}  // namespace mixgrad
