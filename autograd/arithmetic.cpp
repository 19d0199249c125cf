#include "autograd/arithmetic.h"

#include <algorithm>

namespace mixgrad {

Tensor plus(const Tensor& a, const Tensor& b) {
  const BroadcastShape shape = broadcast("add", a.shape(), b.shape());
  Tensor y = Tensor::empty(shape.shape, a.dtype(), a.device());
  dispatch(a, [&](auto device, auto type) {
    using T = decltype(type);
    if (a.shape() == b.shape())
      add(device, y.elements(), a.data<T>(), b.data<T>(), y.data<T>());
    else
      broadcast_add(device, shape, a.data<T>(), b.data<T>(), y.data<T>());
  });
  return y;
}

Tensor minus(const Tensor& a, const Tensor& b) { return plus(a, times(-1, b)); }

Tensor times(const Tensor& a, const Tensor& b) {
  const BroadcastShape shape = broadcast("multiply", a.shape(), b.shape());
  Tensor y = Tensor::empty(shape.shape, a.dtype(), a.device());
  dispatch(a, [&](auto device, auto type) {
    using T = decltype(type);
    broadcast_multiply(device, shape, a.data<T>(), b.data<T>(), y.data<T>());
  });
  return y;
}

Tensor times(double factor, const Tensor& x) {
  Tensor y = empty_like(x);
  dispatch(x, [&](auto device, auto type) {
    using T = decltype(type);
    scale(device, x.elements(), static_cast<T>(factor), x.data<T>(), y.data<T>());
  });
  return y;
}

Tensor summed_to(const Shape& shape, const Tensor& x) {
  if (shape == x.shape()) return x;
  const BroadcastShape repeated = broadcast("reduce", shape, x.shape());
  Tensor sums = Tensor::empty(shape, x.dtype(), x.device());
  dispatch(x, [&](auto device, auto type) {
    using T = decltype(type);
    broadcast_reduce(device, repeated, sums.elements(), x.data<T>(), sums.data<T>());
  });
  return sums;
}

namespace {

int64_t rows_of(const Factor& f) { return f.matrices.shape()[f.transposed == Transpose::yes ? -1 : -2]; }
int64_t columns_of(const Factor& f) { return f.matrices.shape()[f.transposed == Transpose::yes ? -2 : -1]; }
/// Elements from one matrix to the next; 0: there is one for all.
int64_t stride_of(const Tensor& matrices) {
  const Shape& shape = matrices.shape();
  return shape.rank() == 2 ? 0 : shape[-2] * shape[-1];
}

void multiply_into(Tensor& c, double alpha, const Factor& a, const Factor& b, double beta) {
  const Shape& shape = c.shape();
  check(
      shape.rank() == 4 && columns_of(a) == rows_of(b) && rows_of(a) == shape[2] && columns_of(b) == shape[3],
      "[matmul] ", a.matrices.shape(), " times ", b.matrices.shape(), " to ", shape);
  const GemmBatch batch{.inner = shape[0] * shape[1],
                        .a_inner = stride_of(a.matrices),
                        .b_inner = stride_of(b.matrices),
                        .c_inner = stride_of(c)};
  dispatch(c, [&](auto device, auto type) {
    using T = decltype(type);
    gemm_batched(device,
                 {.m = shape[2], .n = shape[3], .k = columns_of(a), .a = a.transposed, .b = b.transposed},
                 batch, static_cast<T>(alpha), a.matrices.data<T>(), b.matrices.data<T>(),
                 static_cast<T>(beta), c.data<T>());
  });
}

}  // namespace

Tensor matmul(const Factor& a, const Factor& b) {
  const Shape& many = a.matrices.shape().rank() == 4 ? a.matrices.shape() : b.matrices.shape();
  Tensor c = empty_if(true, {many[0], many[1], rows_of(a), columns_of(b)}, a.matrices);
  multiply_into(c, 1, a, b, 0);
  return c;
}

void add_matmul(Tensor& c, double factor, const Factor& a, const Factor& b) {
  multiply_into(c, factor, a, b, 1);
}

Tensor rows(const Tensor& x, int64_t start, int64_t count) { return x.narrow(2, start, count).contiguous(); }

Tensor stacked(const Tensor& a, const Tensor& b) {
  Shape shape = a.shape();
  shape[2] += b.shape()[2];
  Tensor c = Tensor::empty(shape, a.dtype(), a.device());
  c.narrow(2, 0, a.shape()[2]).copy_from(a);
  c.narrow(2, a.shape()[2], b.shape()[2]).copy_from(b);
  return c;
}

Tensor sum_of_columns(const Tensor& x) {
  return matmul(x, Tensor::full({x.shape()[-1], 1}, 1, x.dtype(), x.device()));
}

Tensor sum_of_rows(const Tensor& x) {
  return matmul(Tensor::full({1, x.shape()[-2]}, 1, x.dtype(), x.device()), x);
}

Tensor triangle(int64_t n, double below, double on, double above, const Tensor& like) {
  std::vector<double> values(n * n, above);
  for (int64_t i = 0; i < n; ++i) {
    std::fill_n(values.begin() + i * n, i, below);
    values[i * n + i] = on;
  }
  return Tensor::from(values, {n, n}).to(like.dtype()).to(like.device());
}

}  // namespace mixgrad
