// Conjugate gradients: many linear systems (A_r + diag(lambda)) x_r = b_r of one size at once, with symmetric
// positive definite matrices of which only products with a vector are known.
//
// A round is a product for every row, by whatever knows the matrices, and conjugate_gradient_step. Rows are
// independent of each other to the bit: one that has converged is left alone in the rounds that others need.
// Hestenes, Stiefel: Methods of conjugate gradients for solving linear systems, 1952.
#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace mixgrad {

struct LinearSystems {
  int64_t rows;     // how many systems
  int64_t columns;  // unknowns of each
  int64_t heads;    // row r has the diagonal of head r mod heads
};

/// What is known of the solutions; [rows, columns] but for the last two, [rows].
template <class T>
struct ConjugateGradients {
  T* x;          // the solutions so far
  T* residual;   // r = b - (A + diag(lambda)) x
  T* direction;  // p, which the next product is wanted of
  T* squares;    // |r|^2
  T* limits;     // a row has converged when its |r|^2 is not above this
};

/// x = 0 and p = r = b [rows, columns]. A row will have converged with |r| <= eps |b|, eps that of T.
template <class T>
void conjugate_gradient_start(Cpu, const LinearSystems& shape, const T* b, const ConjugateGradients<T>& cg);

/// One step of every row that has not converged, with product = A p [rows, columns] and diagonal = lambda
/// [heads, columns]: with y = product + lambda p and a = |r|^2 / (p . y),
///   x += a p      r -= a y      p = r + (|r|^2 / |r before|^2) p
/// A row that holds NaN goes on, so that its solution is NaN. Returns whether any row goes on; waits for the
/// device.
template <class T>
bool conjugate_gradient_step(Cpu, const LinearSystems& shape, const T* diagonal, const T* product,
                             const ConjugateGradients<T>& cg);

// On a GPU: cuda/kernels/conjugate_gradient.cu. All pointers are to device memory.
template <class T>
void conjugate_gradient_start(Cuda, const LinearSystems& shape, const T* b, const ConjugateGradients<T>& cg);
template <class T>
bool conjugate_gradient_step(Cuda, const LinearSystems& shape, const T* diagonal, const T* product,
                             const ConjugateGradients<T>& cg);

}  // namespace mixgrad
