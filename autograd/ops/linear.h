// Linear maps.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

/// y[..., o] = sum over i of x[..., i] weight[o, i] + bias[o]. x [..., in], weight [out, in], bias [out] or
/// undefined. Saved for backward: x, weight. 2 rows in out FLOPs forward, twice that backward.
Variable linear(const Variable& x, const Variable& weight, const Variable& bias = {});

std::vector<GradCase> linear_cases(CaseInputs& inputs);

}  // namespace mixgrad
