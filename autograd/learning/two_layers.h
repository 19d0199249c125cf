// The errors of a network of two layers, k -> z1 = k W1 (+ b1), x2 = GELU(z1), z2 = x2 W2 (+ b2), as part of
// a forward pass: what the gradient of a loss by z2 is by z1, and the backward of both. GELU by its tanh
// approximation. All tensors are [B, H, rows, columns].
#pragma once

#include "autograd/arithmetic.h"

namespace mixgrad {

/// From u2, the gradient by z2: u1 = back (.) GELU'(z1), back = u2 W2^T.
struct HiddenErrors {
  Tensor back;
  Tensor gradient;  // u1
};
HiddenErrors hidden_errors(const Tensor& z1, const Tensor& u2, const Tensor& weight2);
/// dz1 = du1 (.) back (.) GELU''(z1). Adds to the gradients of u2 and W2.
Tensor hidden_errors_backward(const HiddenErrors& errors, const Tensor& z1, const Tensor& u2,
                              const Tensor& weight2, const Tensor& du1, Tensor& du2, Tensor& dweight2);

/// From the gradients of z2, x2 and z1, the latter two as far as they come by other ways: returns that of z1,
/// and adds to those of k, W1 and W2.
Tensor two_layers_backward(const Tensor& k, const Tensor& z1, const Tensor& x2, const Tensor& weight1,
                           const Tensor& weight2, const Tensor& dz2, Tensor dx2, const Tensor& dz1,
                           Tensor& dk, Tensor& dweight1, Tensor& dweight2);

}  // namespace mixgrad
