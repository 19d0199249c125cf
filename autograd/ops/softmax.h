// Softmax, its logarithm, log-sum-exp and cross entropy, each along the last axis.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

// What rows with infinities give is written in tensor/kernels/softmax.h: a row of -inf gives zeros (softmax)
// or -inf (the others) with zero gradients. Each throws Error when x is a scalar.

/// y = exp(x) / sum exp(x). x, y [..., columns]. Saved for backward: y.
Variable softmax(const Variable& x);
/// y = x - log sum exp(x). x, y [..., columns]. Saved for backward: y.
Variable log_softmax(const Variable& x);
/// y = log sum exp(x). x [..., columns], y [...]. Saved for backward: x, and two numbers a row.
Variable logsumexp(const Variable& x);

/// The target that a loss leaves out unless told otherwise.
inline constexpr int32_t ignored_target = -100;

/// The mean over all targets but those equal to ignore_index of log sum exp(logits) - logits[target], in
/// nats: a scalar. logits [..., V], targets int32 [...]. Saved for backward: logits, targets, and two numbers
/// a row; the probabilities are never stored. Throws Error for shapes that do not go together, for a target
/// outside [0, V), and when no target counts.
Variable cross_entropy(const Variable& logits, const Tensor& targets, int32_t ignore_index = ignored_target);

/// cross_entropy(linear(x, weight), targets, ignore_index) without the logits, which for a large vocabulary
/// are a model's largest tensor: a block of rows, up to 64 MiB, exists at a time. x [..., D], weight [V, D],
/// targets int32 [...]. Saved for backward: the gradients, as large as x and weight, which forward computes
/// on the way. Throws as cross_entropy does. An ignored row of x must be finite: it is multiplied by 0.
Variable linear_cross_entropy(const Variable& x, const Variable& weight, const Tensor& targets,
                              int32_t ignore_index = ignored_target);

/// A sum of losses, and the number of targets that it is over.
struct NatsOfTargets {
  double nats = 0;
  int64_t counted = 0;
};

/// The same as a sum instead of a mean, added up in double and not differentiable: for evaluation over many
/// batches. No target needs to count.
NatsOfTargets linear_cross_entropy_sum(const Variable& x, const Variable& weight, const Tensor& targets,
                                       int32_t ignore_index = ignored_target);

std::vector<GradCase> softmax_cases(CaseInputs& inputs);

}  // namespace mixgrad
