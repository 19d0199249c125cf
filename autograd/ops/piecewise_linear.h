// A linear map that changes along a sequence: for weights that learn while a text is read.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

/// y[b, t, o] = sum over i of x[b, t, i] weight[b, t / piece, o, i]: each sequence has a weight of its own
/// for each piece of so many tokens, of which the last may be shorter. x [B, T, in], weight [B, P, out, in]
/// with P = T / piece, rounded up. Saved for backward: x, weight. 2 B T in out FLOPs forward, twice that
/// backward. Throws Error when shapes do not go together or piece is below 1.
Variable piecewise_linear(const Variable& x, const Variable& weight, int64_t piece);

std::vector<GradCase> piecewise_linear_cases(CaseInputs& inputs);

}  // namespace mixgrad
