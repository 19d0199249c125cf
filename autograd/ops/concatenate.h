// One sequence behind another.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

/// The tokens of a [B, Ta, ...], then those of b [B, Tb, ...]: [B, Ta + Tb, ...]. Both may be views that are
/// narrowed along B or T. Throws Error when the other axes differ.
Variable concatenate(const Variable& a, const Variable& b);

std::vector<GradCase> concatenate_cases(CaseInputs& inputs);

}  // namespace mixgrad
