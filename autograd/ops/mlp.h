// The two layers of a transformer block's MLP as one op.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

/// y = GELU(x W^T + b) V^T + c, GELU by its tanh approximation. x [..., in], up weight W [hidden, in], up
/// bias b [hidden] or undefined, down weight V [out, hidden], down bias c [out] or undefined; returns [...,
/// out].
///
/// One op, so that GELU and its derivative are computed where the products leave their results in the cache.
/// Saved for backward: x, both weights and u = x W^T + b, from which GELU(u) is computed again.
Variable mlp(const Variable& x, const Variable& up_weight, const Variable& up_bias,
             const Variable& down_weight, const Variable& down_bias);

std::vector<GradCase> mlp_cases(CaseInputs& inputs);

}  // namespace mixgrad
