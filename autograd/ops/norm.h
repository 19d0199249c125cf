// Normalisation along the last axis: layer norm, RMS norm alone and with a gate, division by the length.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"
#include "tensor/kernels/norm.h"

namespace mixgrad {

// x, y [..., D]; weight and bias [D] or undefined, for 1 and 0. The variance is the biased one, divided by D;
// eps stands inside the root. Saved for backward: x, weight, and one or two numbers a row. Each
// throws Error for shapes that do not go together, and UsageError unless eps > 0: a row of zeros needs it.

/// y = (x - mean) / sqrt(variance + eps) weight + bias. Ba, Kiros, Hinton, 2016.
Variable layer_norm(const Variable& x, const Variable& weight = {}, const Variable& bias = {},
                    double eps = 1e-5);

/// y = x / sqrt(mean of x^2 + eps) weight. Zhang, Sennrich, 2019.
Variable rms_norm(const Variable& x, const Variable& weight = {}, double eps = 1e-6);

enum class GateFunction { silu, sigmoid };

struct GatedRmsNormOptions {
  GateOrder order = GateOrder::norm_first;
  GateFunction function = GateFunction::silu;
  double eps = 1e-6;
};

/// rms_norm(x, weight) f(gate), or, gate first, rms_norm(x f(gate), weight), in one pass: neither the gate's
/// activation nor the norm is stored. gate [..., D] like x, and saved too. Norm first with silu: Sun et al.,
/// 2023 (arXiv 2307.08621); gate first: Dao, Gu, 2024 (arXiv 2405.21060).
Variable gated_rms_norm(const Variable& x, const Variable& gate, const Variable& weight,
                        const GatedRmsNormOptions& options = {});

/// y = x / sqrt(sum of x^2 + eps): a row of length 1, or shorter where eps matters.
Variable l2_normalize(const Variable& x, double eps = 1e-6);

std::vector<GradCase> norm_cases(CaseInputs& inputs);

}  // namespace mixgrad
