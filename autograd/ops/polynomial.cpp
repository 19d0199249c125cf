#include "autograd/ops/polynomial.h"

#include "autograd/arithmetic.h"
#include "autograd/op.h"

namespace mixgrad {

namespace {

/// y = (a_1 x, a_2 x^T x). With dY the gradient of the second part as a matrix [d, d], dx = a_1 dy_1 + a_2 x
/// (dY
/// + dY^T), da_1 = sum of dy_1 (.) x, da_2 = sum of dY (.) x^T x. Saved: x, a.
struct Polynomial {
  static constexpr std::string_view name = "polynomial";

  Tensor forward(Context& context, const Tensor& x, const Tensor& coefficients) const {
    context.save(x);
    context.save(coefficients);
    const int64_t rows = x.shape().rows(), d = x.shape().columns();
    Tensor y = Tensor::empty({rows, d + d * d}, x.dtype(), x.device());
    const Tensor squares = times(x.reshape({rows, d, 1}), x.reshape({rows, 1, d}));
    y.narrow(1, 0, d).copy_from(times(x.reshape({rows, d}), coefficients.narrow(0, 0, 1)));
    y.narrow(1, d, d * d).copy_from(times(squares.reshape({rows, d * d}), coefficients.narrow(0, 1, 1)));
    Shape shape = x.shape();
    shape[-1] = d + d * d;
    return y.reshape(shape);
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor &x = context.saved(0), &coefficients = context.saved(1);
    const int64_t rows = x.shape().rows(), d = x.shape().columns();
    const Tensor both = dy.reshape({rows, d + d * d});
    const Tensor dfirst = both.narrow(1, 0, d).contiguous();
    const Tensor dsecond = both.narrow(1, d, d * d).contiguous().reshape({1, rows, d, d});
    const Tensor row = x.reshape({1, rows, 1, d});
    const Tensor through = plus(matmul(row, dsecond), matmul(row, transposed(dsecond)));  // [1, rows, 1, d]
    const Tensor dx = plus(times(dfirst, coefficients.narrow(0, 0, 1)),
                           times(through.reshape({rows, d}), coefficients.narrow(0, 1, 1)));
    Tensor dcoefficients = empty_like(coefficients);
    dcoefficients.narrow(0, 0, 1).copy_from(summed(times(dfirst, x.reshape({rows, d}))));
    dcoefficients.narrow(0, 1, 1).copy_from(times(0.5, summed(times(through, row))));
    return {dx.reshape(x.shape()), dcoefficients};
  }

  static Tensor summed(const Tensor& x) {
    Tensor total = Tensor::empty({1}, x.dtype(), x.device());
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      sum_all(device, x.elements(), x.data<T>(), total.data<T>());
    });
    return total;
  }
};

}  // namespace

Variable polynomial(const Variable& x, const Variable& coefficients) {
  check(x.shape().rank() >= 1 && coefficients.shape() == Shape{2}, "[polynomial] x ", x.shape(),
        ", coefficients ", coefficients.shape(), ": they must be [..., d] and [2]");
  return apply(Polynomial{}, x, coefficients);
}

std::vector<GradCase> polynomial_cases(CaseInputs& inputs) {
  return {{"polynomial",
           {inputs.normal("x", {2, 3, 4}), inputs.normal("coefficients", {2})},
           [](const std::vector<Variable>& in) { return std::vector{polynomial(in[0], in[1])}; }}};
}

}  // namespace mixgrad
