// Gaussian mixtures with diagonal covariances: log densities and responsibilities.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

/// log N(x; mean_k, diag variance_k) for each component k, in nats.
/// One mixture: x [..., dr], mean and variance [K, dr] -> [..., K].
/// One a head: x [..., H, dr], mean and variance [H, K, dr] -> [..., H, K].
/// Variances must be above 0. Saved for backward: x, mean, variance. 4 dr K FLOPs a row forward, 8 dr K
/// backward.
Variable gmm_log_density(const Variable& x, const Variable& mean, const Variable& variance);

/// gamma = softmax over k of (log_prior_k + log N(x; mean_k, diag variance_k)): the probability that x came
/// from component k. Shapes as above, log_prior [K] or [H, K]; -inf switches a component off. The log
/// densities are not kept. Saved for backward: x, gamma and the parameters but log_prior. Gaussian Mixture
/// Attention (arXiv 2606.18283), equation 2; gradients in nn/mixers/gma/gma.md.
Variable gmm_posterior(const Variable& x, const Variable& mean, const Variable& variance,
                       const Variable& log_prior);

/// A mixture's variances and priors.
struct GmmParameters {
  Variable variance;     // [H, K, dr] or [K, dr]
  Variable log_prior;    // [H, K] or [K]
  Tensor prepared = {};  // what gmm_prepared() adds
};

/// The same with what gmm_posterior() computes of these and of the means before it looks at x, for who calls
/// it with them many times. Unchanged on a GPU, where that is nothing.
GmmParameters gmm_prepared(const Variable& mean, GmmParameters mixture);

/// What was prepared must be of these means.
Variable gmm_posterior(const Variable& x, const Variable& mean, const GmmParameters& mixture);

/// From parameters that may take any value: variance = softplus(omega) + floor, log_prior =
/// log_softmax(alpha). floor > 0 keeps a component from collapsing onto one point; else throws UsageError.
GmmParameters gmm_parameters(const Variable& omega, const Variable& alpha, double floor);

/// gmm_posterior() with gmm_parameters().
Variable gmm_responsibilities(const Variable& x, const Variable& mean, const Variable& omega,
                              const Variable& alpha, double floor = 1e-4);

std::vector<GradCase> gmm_cases(CaseInputs& inputs);

}  // namespace mixgrad
