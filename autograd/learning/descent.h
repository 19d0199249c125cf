// Gradient descent as part of a forward pass: linear layers whose weights learn while tokens are read.
//
// The error e_j of a token is the gradient of its loss with respect to what a layer gives for its input x_j,
// so that the weight's gradient is x_j^T e_j, and the bias's e_j. Token i reads with the weight W - sum over
// j of R_ij x_j^T e_j, with rates R. Nobody writes these weights down: what they give for q_i is
//
//   q W - (R (.) (q x^T)) e      and, with a bias,      q W + b - (R (.) (q x^T + 1)) e
//
// All tensors are [B, H, rows, columns]: q [n, I], x [m, I], e [m, O], for the last n of m tokens. Sun et
// al., 2024 (arXiv 2407.04620).
#pragma once

#include "autograd/arithmetic.h"

namespace mixgrad {

/// What descending has changed in what queries read.
struct DescentRead {
  Tensor gram;     // q x^T, + 1 with a bias [n, m]
  Tensor weights;  // R (.) gram
  Tensor change;   // -weights e [n, O]
};
/// rates R [B, H, n, m] or [n, m].
DescentRead descent_read(const Tensor& q, const Tensor& x, const Tensor& e, const Tensor& rates, bool bias);

struct DescentGradients {
  Tensor q, x, e;
  Tensor rates;  // in the shape of the rates
};
DescentGradients descent_read_backward(const DescentRead& read, const Tensor& q, const Tensor& x,
                                       const Tensor& e, const Tensor& rates, const Tensor& dchange);

/// What it changes in the weight behind the tokens: -x^T (rates (.) e) [I, O]. rates [B, H, m, 1] or [m, 1].
Tensor descent_write(const Tensor& x, const Tensor& e, const Tensor& rates);
/// In the bias: -(sum over tokens of rates (.) e) [1, O].
Tensor descent_write_bias(const Tensor& e, const Tensor& rates);
/// Of both. Adds to the gradients of x and e, and returns that of the rates. dbias undefined: there is none.
Tensor descent_write_backward(const Tensor& x, const Tensor& e, const Tensor& rates, const Tensor& dweight,
                              const Tensor& dbias, DescentGradients& gradients);

}  // namespace mixgrad
