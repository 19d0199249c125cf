#include "autograd/ops/mlp.h"

#include "autograd/op.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/elementwise.h"
#include "tensor/kernels/gemm.h"
#include "tensor/kernels/scalar.h"

namespace mixgrad {

namespace {

/// u = x W^T + b, h = GELU(u), y = h V^T + c;
/// dV = dy^T h, dc = sum of dy, du = (dy V) GELU'(u), dW = du^T x, db = sum of du, dx = du W.
struct MlpOp {
  static constexpr std::string_view name = "mlp";

  Tensor forward(Context& context, const Tensor& x, const Tensor& up, const Tensor& up_bias,
                 const Tensor& down, const Tensor& down_bias) const {
    const int64_t rows = x.shape().rows(), in = up.shape()[1], hidden = up.shape()[0], out = down.shape()[0];
    Tensor u = Tensor::empty({rows, hidden}, x.dtype(), x.device());
    Tensor h = empty_like(u);
    Shape y_shape = x.shape();
    y_shape[-1] = out;
    Tensor y = Tensor::empty(y_shape, x.dtype(), x.device());
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      gemm(device, {.m = rows, .n = hidden, .k = in, .b = Transpose::yes}, T(1), x.data<T>(), up.data<T>(),
           T(0), u.data<T>(), {.bias = up_bias.data_or_null<T>(), .gelu = h.data<T>()});
      gemm(device, {.m = rows, .n = out, .k = hidden, .b = Transpose::yes}, T(1), h.data<T>(), down.data<T>(),
           T(0), y.data<T>(), {.bias = down_bias.data_or_null<T>()});
    });
    for (const Tensor& tensor : {x, up, down, u}) context.save(tensor);
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor &x = context.saved(0), &up = context.saved(1), &down = context.saved(2),
                 &u = context.saved(3);
    const int64_t rows = u.shape()[0], in = up.shape()[1], hidden = up.shape()[0], out = down.shape()[0];
    const auto wanted = [&](int input, const Shape& shape) {
      return context.wants(input) ? Tensor::empty(shape, x.dtype(), x.device()) : Tensor();
    };
    Tensor dx = wanted(0, x.shape());
    Tensor dup = wanted(1, up.shape()), dup_bias = wanted(2, {hidden});
    Tensor ddown = wanted(3, down.shape()), ddown_bias = wanted(4, {out});
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      const T* const d_y = dy.data<T>();
      if (ddown.defined()) {
        Tensor h = empty_like(u);
        unary_forward<GeluTanh>(device, h.elements(), u.data<T>(), h.data<T>());
        gemm(device, {.m = out, .n = hidden, .k = rows, .a = Transpose::yes}, T(1), d_y, h.data<T>(), T(0),
             ddown.data<T>());
      }
      if (ddown_bias.defined()) bias_backward(device, rows, out, d_y, ddown_bias.data<T>());
      if (!dx.defined() && !dup.defined() && !dup_bias.defined()) return;
      Tensor du = empty_like(u);
      gemm(device, {.m = rows, .n = hidden, .k = out}, T(1), d_y, down.data<T>(), T(0), du.data<T>(),
           {.gelu_input = u.data<T>()});
      if (dup.defined()) {
        gemm(device, {.m = hidden, .n = in, .k = rows, .a = Transpose::yes}, T(1), du.data<T>(), x.data<T>(),
             T(0), dup.data<T>());
      }
      if (dup_bias.defined()) bias_backward(device, rows, hidden, du.data<T>(), dup_bias.data<T>());
      if (dx.defined()) {
        gemm(device, {.m = rows, .n = in, .k = hidden}, T(1), du.data<T>(), up.data<T>(), T(0), dx.data<T>());
      }
    });
    return {dx, dup, dup_bias, ddown, ddown_bias};
  }
};

void check_layer(const char* layer, const Variable& weight, int64_t in, const Variable& bias) {
  check(weight.shape().rank() == 2 && weight.shape()[1] == in, "[mlp] ", layer, " weight ", weight.shape(),
        " for ", in, " inputs; allowed: [outputs, ", in, "]");
  check(!bias.defined() || bias.shape() == Shape{weight.shape()[0]}, "[mlp] ", layer, " bias ", bias.shape(),
        " for weight ", weight.shape(), "; allowed: [", weight.shape()[0], "] or none");
}

}  // namespace

Variable mlp(const Variable& x, const Variable& up_weight, const Variable& up_bias,
             const Variable& down_weight, const Variable& down_bias) {
  check(x.shape().rank() >= 1, "[mlp] x ", x.shape(), "; allowed: [..., in]");
  check_layer("up", up_weight, x.shape()[-1], up_bias);
  check_layer("down", down_weight, up_weight.shape()[0], down_bias);
  return apply(MlpOp{}, x, up_weight, up_bias, down_weight, down_bias);
}

std::vector<GradCase> mlp_cases(CaseInputs& inputs) {
  using Inputs = const std::vector<Variable>&;
  return {
      {"mlp with biases",
       {inputs.normal("x", {2, 3, 5}), inputs.normal("up weight", {7, 5}), inputs.normal("up bias", {7}),
        inputs.normal("down weight", {4, 7}), inputs.normal("down bias", {4})},
       [](Inputs in) { return std::vector{mlp(in[0], in[1], in[2], in[3], in[4])}; }},
      {"mlp without biases",
       {inputs.normal("x", {6, 3}), inputs.normal("up weight", {5, 3}), inputs.normal("down weight", {3, 5})},
       [](Inputs in) { return std::vector{mlp(in[0], in[1], {}, in[2], {})}; }},
  };
}

}  // namespace mixgrad
