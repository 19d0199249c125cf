// Rotary position embedding.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

/// For j < d/2: y_j = x_j cos - x_{j+d/2} sin and y_{j+d/2} = x_{j+d/2} cos + x_j sin of the angle
/// positions[t] theta^(-2j/d), so that the product of two rotated vectors depends on the distance of their
/// positions alone. x [B, T, H, d], which may be part of a fused projection; y contiguous; positions int64
/// [T]. Su et al.: RoFormer, 2021. Saved for backward: positions. Throws Error for shapes that do not go
/// together, UsageError when d is odd or unless theta > 0.
Variable rope(const Variable& x, const Tensor& positions, double theta = 10000);

/// The same for consecutive positions from first_position on.
Variable rope(const Variable& x, int64_t first_position = 0, double theta = 10000);

std::vector<GradCase> rope_cases(CaseInputs& inputs);

}  // namespace mixgrad
