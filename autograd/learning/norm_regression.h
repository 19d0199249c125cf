// The inner loss of test-time training: |norm(z) (.) gamma + beta - target|^2 / 2 for each row z, with norm
// the layer norm without weight and bias. Its gradient is part of a forward pass, so its backward is a second
// derivative.
#pragma once

#include "autograd/arithmetic.h"

namespace mixgrad {

/// With s = sqrt(variance of z + eps), n = (z - mean of z) / s and means over a row's D columns,
///   r = gamma (.) n + beta - target      h = gamma (.) r
///   gradient u = (h - mean of h - n (mean of h (.) n)) / s
/// z and target [B, H, m, D], gamma and beta [H, 1, D].
struct NormRegression {
  Tensor z, mean, inverse_deviation;  // the last two [B, H, m, 1]
  Tensor normalised;                  // n
  Tensor residual;                    // r
  Tensor gradient;                    // u
};
NormRegression norm_regression(const Tensor& z, const Tensor& target, const Tensor& gamma, const Tensor& beta,
                               double eps);

struct NormRegressionGradients {
  Tensor z, target, gamma, beta;
};
/// From du, the gradient of u. The map J from h to u is symmetric, and it is the norm's own backward:
///   dh = J du      dn = gamma^2 (.) dh - (mean of h (.) n) du / s - (mean of n (.) du) h / s
///   dz = J dn - (mean of du (.) u) n / s
///   dtarget = -gamma (.) dh      dbeta = sum of gamma (.) dh      dgamma = sum of dh (.) (gamma (.) n + r)
NormRegressionGradients norm_regression_backward(const NormRegression& forward, const Tensor& gamma,
                                                 const Tensor& du);

}  // namespace mixgrad
