// The positive random features of Performers.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

/// Features whose products estimate softmax attention's exponentials: with rows w_j of W that are normal,
/// phi(q) . phi(k) has the mean exp(q . k / sqrt(d)), but for the offset.
///
///   phi_j(x) = (exp(w_j . x' - |x'|^2 / 2) + offset) / sqrt(m)     x' = x / d^(1/4)
///
/// x [..., d], W [m, d], phi [..., m]. Nothing is subtracted in the exponent, which is at most |w_j|^2 / 2.
/// Saved for backward: x', its square, W, and the exponents [..., m]. Choromanski et al., 2020 (arXiv
/// 2009.14794). Throws Error for shapes that do not go together.
Variable performer_features(const Variable& x, const Variable& W, double offset);

std::vector<GradCase> performer_cases(CaseInputs& inputs);

}  // namespace mixgrad
