// Polynomial features.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

/// All products of up to two entries of x [..., d], times coefficients a [2]: y [..., d + d^2] = (a_1 x_i,
/// then a_2 x_i x_j row by row), so that y . y' = a_1^2 x . x' + a_2^2 (x . x')^2, a polynomial kernel. Saved
/// for backward: x, a. Behrouz et al., 2025 (arXiv 2505.23735). Throws Error for shapes that do not go
/// together.
Variable polynomial(const Variable& x, const Variable& coefficients);

std::vector<GradCase> polynomial_cases(CaseInputs& inputs);

}  // namespace mixgrad
