// The forgetting gate of gated recurrences.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

/// The log decay g = -exp(A_log) softplus(a + dt_bias), below 0: a rate for each head times a step size that
/// each token chooses. a [B, T, H] with dt_bias [H], or, a gate for each key channel, a [B, T, H, dk] with
/// dt_bias [H, dk]; A_log [H]. g has the shape of a. Gu, Dao, 2023 (arXiv 2312.00752); as a gate of matrix
/// states Yang, Kautz, Hatamizadeh, 2024 (arXiv 2412.06464). Saved for backward: the inputs and g. Throws
/// Error for shapes that do not go together.
Variable decay_gate(const Variable& a, const Variable& A_log, const Variable& dt_bias);

std::vector<GradCase> decay_gate_cases(CaseInputs& inputs);

}  // namespace mixgrad
