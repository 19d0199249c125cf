#include "autograd/ops/linear.h"

#include "autograd/op.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/gemm.h"

namespace mixgrad {

namespace {

/// y = x W^T + b; dx = dy W, dW = dy^T x, db = sum of dy over rows.
struct Linear {
  static constexpr std::string_view name = "linear";

  Tensor forward(Context& context, const Tensor& x, const Tensor& weight, const Tensor& bias) const {
    context.save(x);
    context.save(weight);
    const int64_t rows = x.shape().rows(), in = weight.shape()[1], out = weight.shape()[0];
    Shape y_shape = x.shape();
    y_shape[-1] = out;
    Tensor y = Tensor::empty(y_shape, x.dtype(), x.device());
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      gemm(device, {.m = rows, .n = out, .k = in, .b = Transpose::yes}, T(1), x.data<T>(), weight.data<T>(),
           T(0), y.data<T>(), {.bias = bias.data_or_null<T>()});
    });
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor& x = context.saved(0);
    const Tensor& weight = context.saved(1);
    const int64_t rows = x.shape().rows(), in = weight.shape()[1], out = weight.shape()[0];
    Tensor dx = context.wants(0) ? empty_like(x) : Tensor();
    Tensor dweight = context.wants(1) ? empty_like(weight) : Tensor();
    Tensor dbias = context.wants(2) ? Tensor::empty({out}, x.dtype(), x.device()) : Tensor();
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      if (dx.defined()) {
        gemm(device, {.m = rows, .n = in, .k = out}, T(1), dy.data<T>(), weight.data<T>(), T(0),
             dx.data<T>());
      }
      if (dweight.defined()) {
        gemm(device, {.m = out, .n = in, .k = rows, .a = Transpose::yes}, T(1), dy.data<T>(), x.data<T>(),
             T(0), dweight.data<T>());
      }
      if (dbias.defined()) bias_backward(device, rows, out, dy.data<T>(), dbias.data<T>());
    });
    return {dx, dweight, dbias};
  }
};

}  // namespace

Variable linear(const Variable& x, const Variable& weight, const Variable& bias) {
  check(x.shape().rank() >= 1 && weight.shape().rank() == 2 && x.shape()[-1] == weight.shape()[1],
        "[linear] x ", x.shape(), " and weight ", weight.shape(),
        ": x must be [..., in] and weight [out, in]");
  check(!bias.defined() || bias.shape() == Shape{weight.shape()[0]}, "[linear] bias ", bias.shape(),
        " for weight ", weight.shape(), ": it must be [out]");
  return apply(Linear{}, x, weight, bias);
}

std::vector<GradCase> linear_cases(CaseInputs& inputs) {
  using Inputs = const std::vector<Variable>&;
  return {
      {"linear with bias",
       {inputs.normal("x", {2, 3, 5}), inputs.normal("weight", {4, 5}), inputs.normal("bias", {4})},
       [](Inputs in) { return std::vector{linear(in[0], in[1], in[2])}; }},
      {"linear of one row without bias",
       {inputs.normal("x", {3}), inputs.normal("weight", {2, 3})},
       [](Inputs in) { return std::vector{linear(in[0], in[1])}; }},
  };
}

}  // namespace mixgrad
