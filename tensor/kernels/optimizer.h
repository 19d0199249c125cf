// The kernels of an optimiser step.
#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace mixgrad {

/// Loshchilov, Hutter: Decoupled weight decay regularization (ICLR 2019), algorithm 2.
struct AdamWStep {
  double learning_rate;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;    // of this parameter; 0 for those that don't decay
  double gradient_scale;  // gradients are multiplied by this first: clipping costs no pass of its own
  int64_t step;           // counted from 1: for the bias correction
};

/// One step on n values p with gradient g, in place on p and on the moments m (of g) and v (of g squared):
///   p -= lr wd p;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
///   p -= lr (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + eps)
template <class T>
void adamw(Cpu, int64_t n, const AdamWStep& step, const T* g, T* p, T* m, T* v);

/// Sum of x^2, accumulated in double in a fixed order.
template <class T>
double sum_of_squares(Cpu, int64_t n, const T* x);

// On a GPU: cuda/kernels/optimizer.cu. All pointers are to device memory.
template <class T>
void adamw(Cuda, int64_t n, const AdamWStep& step, const T* g, T* p, T* m, T* v);
/// Waits for the device.
template <class T>
double sum_of_squares(Cuda, int64_t n, const T* x);

}  // namespace mixgrad
