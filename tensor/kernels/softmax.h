// Softmax, its logarithm, log-sum-exp and cross entropy, each along the last axis.
//
// x, y, logits and their gradients are contiguous [rows, columns]; statistics are [rows]. Everywhere the
// row's maximum is subtracted before exp, so that nothing overflows. Where rows hold infinities:
// - a row of -inf has no probabilities: softmax 0, log-softmax and log-sum-exp -inf, gradients 0;
// - entries at +inf share the probability of their row among them; log-sum-exp is +inf.
// A NaN makes its whole row NaN.
#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace mixgrad {

/// y = exp(x) / sum exp(x)
template <class T>
void softmax_forward(Cpu, int64_t rows, int64_t columns, const T* x, T* y);
/// dx = y (dy - sum dy y)
template <class T>
void softmax_backward(Cpu, int64_t rows, int64_t columns, const T* y, const T* dy, T* dx);

/// y = x - log sum exp(x)
template <class T>
void log_softmax_forward(Cpu, int64_t rows, int64_t columns, const T* x, T* y);
/// dx = dy - exp(y) sum dy. An entry with y = -inf is a constant: its dx is 0, its dy isn't looked at.
template <class T>
void log_softmax_backward(Cpu, int64_t rows, int64_t columns, const T* y, const T* dy, T* dx);

/// y[row] = log sum exp(x). Keeps for backward the row's maximum and sum = sum exp(x - maximum): exp(x - y)
/// would lose digits where y is large.
template <class T>
void logsumexp_forward(Cpu, int64_t rows, int64_t columns, const T* x, T* y, T* maximum, T* sum);
/// dx = dy[row] exp(x - maximum) / sum
template <class T>
void logsumexp_backward(Cpu, int64_t rows, int64_t columns, const T* x, const T* maximum, const T* sum,
                        const T* dy, T* dx);

/// The sizes of a cross entropy, and the target that marks a row to be left out.
struct CrossEntropyShape {
  int64_t rows, vocabulary;
  int32_t ignore_index;
};

/// What there is to know of targets before computing with them.
struct TargetSurvey {
  int64_t counted = 0;         // rows that are not ignored
  int64_t first_invalid = -1;  // first row whose target is neither ignored nor in [0, vocabulary); -1: none
};
TargetSurvey survey_targets(Cpu, CrossEntropyShape shape, const int32_t* targets);

/// nats (one element) = sum over the rows that are not ignored of log sum exp(logits) - logits[target], added
/// up in double. Keeps maximum and sum as logsumexp does. Every target must be valid.
template <class T>
void cross_entropy_forward(Cpu, CrossEntropyShape shape, const T* logits, const int32_t* targets, T* maximum,
                           T* sum, double* nats);
/// dlogits = dloss / counted (softmax(logits) - onehot(target)), 0 in ignored rows; dloss has one element.
template <class T>
void cross_entropy_backward(Cpu, CrossEntropyShape shape, int64_t counted, const T* logits,
                            const int32_t* targets, const T* maximum, const T* sum, const T* dloss,
                            T* dlogits);

/// Both at once, for logits that nobody needs afterwards: nats[row] = log sum exp(logits) - logits[target],
/// and logits = factor (softmax(logits) - onehot(target)); both 0 in ignored rows.
template <class T>
void cross_entropy_in_place(Cpu, CrossEntropyShape shape, T factor, const int32_t* targets, T* logits,
                            double* nats);

// On a GPU: cuda/kernels/softmax.cu. All pointers are to device memory.
template <class T>
void softmax_forward(Cuda, int64_t rows, int64_t columns, const T* x, T* y);
template <class T>
void softmax_backward(Cuda, int64_t rows, int64_t columns, const T* y, const T* dy, T* dx);
template <class T>
void log_softmax_forward(Cuda, int64_t rows, int64_t columns, const T* x, T* y);
template <class T>
void log_softmax_backward(Cuda, int64_t rows, int64_t columns, const T* y, const T* dy, T* dx);
template <class T>
void logsumexp_forward(Cuda, int64_t rows, int64_t columns, const T* x, T* y, T* maximum, T* sum);
template <class T>
void logsumexp_backward(Cuda, int64_t rows, int64_t columns, const T* x, const T* maximum, const T* sum,
                        const T* dy, T* dx);
/// Waits for the device.
TargetSurvey survey_targets(Cuda, CrossEntropyShape shape, const int32_t* targets);
template <class T>
void cross_entropy_forward(Cuda, CrossEntropyShape shape, const T* logits, const int32_t* targets, T* maximum,
                           T* sum, double* nats);
template <class T>
void cross_entropy_backward(Cuda, CrossEntropyShape shape, int64_t counted, const T* logits,
                            const int32_t* targets, const T* maximum, const T* sum, const T* dloss,
                            T* dlogits);
template <class T>
void cross_entropy_in_place(Cuda, CrossEntropyShape shape, T factor, const int32_t* targets, T* logits,
                            double* nats);

}  // namespace mixgrad
