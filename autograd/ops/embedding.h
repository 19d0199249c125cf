// Table look-up.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

/// y[..., :] = weight[ids[...], :]. ids int32 [...], weight [V, D], y [..., D]. The gradient adds up over ids
/// that repeat and is 0 for rows that are not used. Saved for backward: ids.
/// Throws Error when weight isn't a matrix, and for an id outside [0, V), naming its position.
Variable embedding(const Tensor& ids, const Variable& weight);

std::vector<GradCase> embedding_cases(CaseInputs& inputs);

}  // namespace mixgrad
