// Layer and RMS normalisation along the last axis.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

// x, y [..., D]; weight and bias [D] or undefined, for 1 and 0. The variance is the biased one, divided by D;
// eps is added to it inside the root. Saved for backward: x, weight, and one or two numbers a row. Each
// throws Error for shapes that do not go together, and UsageError unless eps > 0: a row of zeros needs it.

/// y = (x - mean) / sqrt(variance + eps) weight + bias. Ba, Kiros, Hinton, 2016.
Variable layer_norm(const Variable& x, const Variable& weight = {}, const Variable& bias = {},
                    double eps = 1e-5);

/// y = x / sqrt(mean of x^2 + eps) weight. Zhang, Sennrich, 2019.
Variable rms_norm(const Variable& x, const Variable& weight = {}, double eps = 1e-6);

std::vector<GradCase> norm_cases(CaseInputs& inputs);

}  // namespace mixgrad
