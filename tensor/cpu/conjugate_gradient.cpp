// Conjugate gradients on the CPU: tasks are blocks of systems.
#include "tensor/kernels/conjugate_gradient.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "tensor/cpu/reduce.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

/// Calls body(row) for every system, in parallel.
template <class Body>
void for_each_system(const LinearSystems& s, const Body& body) {
  parallel_blocks(s.rows, rows_per_block(s.columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

template <class T>
T dot(int64_t n, const T* a, const T* b) {
  return row_sum<T>(n, [=](int64_t i) { return a[i] * b[i]; });
}

}  // namespace

template <class T>
void conjugate_gradient_start(Cpu, const LinearSystems& s, const T* b, const ConjugateGradients<T>& cg) {
  constexpr T eps = std::numeric_limits<T>::epsilon();
  for_each_system(s, [&](int64_t row) {
    const int64_t first = row * s.columns;
    std::fill_n(cg.x + first, s.columns, T(0));
    std::copy_n(b + first, s.columns, cg.residual + first);
    std::copy_n(b + first, s.columns, cg.direction + first);
    cg.squares[row] = dot(s.columns, b + first, b + first);
    cg.limits[row] = eps * eps * cg.squares[row];
  });
}

template <class T>
bool conjugate_gradient_step(Cpu, const LinearSystems& s, const T* diagonal, const T* product,
                             const ConjugateGradients<T>& cg) {
  std::atomic<bool> any = false;  // only ever set, so that the order doesn't matter
  for_each_system(s, [&](int64_t row) {
    const T before = cg.squares[row];
    if (before <= cg.limits[row]) return;
    const int64_t n = s.columns;
    const T *lambda = diagonal + row % s.heads * n, *ap = product + row * n;
    T *x = cg.x + row * n, *r = cg.residual + row * n, *p = cg.direction + row * n;
    const T a = before / row_sum<T>(n, [=](int64_t i) { return p[i] * (ap[i] + lambda[i] * p[i]); });
    for (int64_t i = 0; i < n; ++i) {
      x[i] += a * p[i];
      r[i] -= a * (ap[i] + lambda[i] * p[i]);
    }
    const T after = dot(n, r, r);
    const T turn = after / before;
    for (int64_t i = 0; i < n; ++i) p[i] = r[i] + turn * p[i];
    cg.squares[row] = after;
    if (!(after <= cg.limits[row])) any = true;
  });
  return any;
}

#define INSTANTIATE(T)                                                                    \
  template void conjugate_gradient_start<T>(Cpu, const LinearSystems&, const T*,          \
                                            const ConjugateGradients<T>&);                \
  template bool conjugate_gradient_step<T>(Cpu, const LinearSystems&, const T*, const T*, \
                                           const ConjugateGradients<T>&);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
