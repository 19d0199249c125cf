// Arithmetic on tensors, without gradients: for ops that are made of many small steps.
#pragma once

#include "tensor/dispatch.h"
#include "tensor/kernels/elementwise.h"
#include "tensor/kernels/gemm.h"

namespace mixgrad {

// Operands are contiguous and of one element type and device. Axes of size 1 and missing leading axes are
// repeated to match the other operand; shapes that do not go together throw Error.

Tensor plus(const Tensor& a, const Tensor& b);
Tensor minus(const Tensor& a, const Tensor& b);
Tensor times(const Tensor& a, const Tensor& b);
Tensor times(double factor, const Tensor& x);
/// The backward of repeating an operand of this shape: x, summed over the axes along which it was repeated.
Tensor summed_to(const Shape& shape, const Tensor& x);

/// F(x), F one of the functions of tensor/kernels/scalar.h.
template <class F>
Tensor mapped(const Tensor& x) {
  Tensor y = empty_like(x);
  dispatch(x, [&](auto device, auto type) {
    using T = decltype(type);
    unary_forward<F>(device, x.elements(), x.data<T>(), y.data<T>());
  });
  return y;
}
/// dy F'(x)
template <class F>
Tensor mapped_backward(const Tensor& x, const Tensor& dy) {
  Tensor dx = empty_like(x);
  dispatch(x, [&](auto device, auto type) {
    using T = decltype(type);
    unary_backward<F>(device, x.elements(), x.data<T>(), dy.data<T>(), dx.data<T>());
  });
  return dx;
}

/// A factor of a product of matrices: [B, H, rows, columns], or [rows, columns], the same one for all, and
/// whether it is meant transposed.
struct Factor {
  Factor(const Tensor& tensor, Transpose transpose = Transpose::no)
      : matrices(tensor), transposed(transpose) {}

  const Tensor& matrices;
  Transpose transposed;
};
inline Factor transposed(const Tensor& matrices) { return {matrices, Transpose::yes}; }

/// a b for each sequence and head. At least one factor is [B, H, ...].
Tensor matmul(const Factor& a, const Factor& b);
/// c += factor a b, with c [B, H, ...].
void add_matmul(Tensor& c, double factor, const Factor& a, const Factor& b);

/// Rows start to start + count of x [B, H, rows, columns], and the rows of a followed by those of b.
Tensor rows(const Tensor& x, int64_t start, int64_t count);
Tensor stacked(const Tensor& a, const Tensor& b);
/// Sums over the columns, [B, H, rows, 1], and over the rows, [B, H, 1, columns], of x [B, H, rows, columns].
Tensor sum_of_columns(const Tensor& x);
Tensor sum_of_rows(const Tensor& x);
/// [n, n]: one value below the diagonal, one on it and one above it.
Tensor triangle(int64_t n, double below, double on, double above, const Tensor& like);
/// [n, n]: 1 on and below the diagonal, 0 above.
inline Tensor lower_triangle(int64_t n, const Tensor& like) { return triangle(n, 1, 1, 0, like); }

}  // namespace mixgrad
