// Elementwise ops: unary functions, SwiGLU, sums and products with broadcasting, dropout, row masks; and sums
// to a scalar.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

// Unary functions of x of any shape; formulas and sources in tensor/kernels/scalar.h. Saved for backward: x.
Variable sigmoid(const Variable& x);
Variable log_sigmoid(const Variable& x);
Variable softplus(const Variable& x);
Variable silu(const Variable& x);
Variable gelu_erf(const Variable& x);
Variable gelu_tanh(const Variable& x);
Variable exp(const Variable& x);
Variable reciprocal(const Variable& x);
Variable elu_plus_one(const Variable& x);

/// silu(a) b, of two operands of one shape. Shazeer, 2020 (arXiv 2002.05202). Saved for backward: a, b.
/// Throws Error when the shapes differ.
Variable swiglu(const Variable& a, const Variable& b);

/// a + b and a b, repeating axes of size 1 (and missing leading axes) to match the other operand.
/// Throws Error when the shapes do not go together.
Variable add(const Variable& a, const Variable& b);
Variable multiply(const Variable& a, const Variable& b);
/// factor x
Variable scale(const Variable& x, double factor);
/// x + offset
Variable add_scalar(const Variable& x, double offset);

/// The sum of all elements, a scalar.
Variable sum(const Variable& x);

/// The same values in another shape of as many elements.
Variable reshape(const Variable& x, const Shape& shape);

/// Inverted dropout: each element is 0 with probability `rate`, else x / (1 - rate). Draws from the
/// generator, which moves on. rate = 0 is the identity and draws nothing. Throws UsageError unless 0 <= rate
/// < 1.
Variable dropout(const Variable& x, double rate, Generator& generator);

/// y = x where mask is not 0, and 0 elsewhere, by selection: what stands in a masked row is never looked at.
/// mask int32 [leading axes of x].
Variable mask_rows(const Variable& x, const Tensor& mask);

std::vector<GradCase> elementwise_cases(CaseInputs& inputs);

}  // namespace mixgrad
