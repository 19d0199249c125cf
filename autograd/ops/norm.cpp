#include "autograd/ops/norm.h"

#include "autograd/op.h"
#include "tensor/dispatch.h"

namespace mixgrad {

namespace {

/// A gradient of shape [D] for an optional operand.
Tensor gradient_of_columns(bool wanted, const Tensor& x) {
  return wanted ? Tensor::empty({x.shape().columns()}, x.dtype(), x.device()) : Tensor();
}

/// y = (x - mean) / sqrt(variance + eps) weight + bias; the backward is in tensor/kernels/norm.h.
struct LayerNorm {
  static constexpr std::string_view name = "layer_norm";
  double eps;

  Tensor forward(Context& context, const Tensor& x, const Tensor& weight, const Tensor& bias) const {
    Tensor y = empty_like(x);
    Tensor mean = Tensor::empty(x.shape().drop_last(), x.dtype(), x.device());
    Tensor inverse_deviation = empty_like(mean);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      layer_norm_forward(device, x.shape().rows(), x.shape().columns(), eps, x.data<T>(),
                         weight.data_or_null<T>(), bias.data_or_null<T>(), y.data<T>(), mean.data<T>(),
                         inverse_deviation.data<T>());
    });
    context.save(x);
    context.save(weight);
    context.save(mean);
    context.save(inverse_deviation);
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor& x = context.saved(0);
    const Tensor& weight = context.saved(1);
    const Tensor& mean = context.saved(2);
    const Tensor& inverse_deviation = context.saved(3);
    Tensor dx = context.wants(0) ? empty_like(x) : Tensor();
    Tensor dweight = gradient_of_columns(context.wants(1), x);
    Tensor dbias = gradient_of_columns(context.wants(2), x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      layer_norm_backward(device, x.shape().rows(), x.shape().columns(), x.data<T>(),
                          weight.data_or_null<T>(), mean.data<T>(), inverse_deviation.data<T>(), dy.data<T>(),
                          dx.data_or_null<T>(), dweight.data_or_null<T>(), dbias.data_or_null<T>());
    });
    return {dx, dweight, dbias};
  }
};

/// y = x / sqrt(mean of x^2 + eps) weight; the backward is in tensor/kernels/norm.h.
struct RmsNorm {
  static constexpr std::string_view name = "rms_norm";
  double eps;

  Tensor forward(Context& context, const Tensor& x, const Tensor& weight) const {
    Tensor y = empty_like(x);
    Tensor inverse_deviation = Tensor::empty(x.shape().drop_last(), x.dtype(), x.device());
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      rms_norm_forward(device, x.shape().rows(), x.shape().columns(), eps, x.data<T>(),
                       weight.data_or_null<T>(), y.data<T>(), inverse_deviation.data<T>());
    });
    context.save(x);
    context.save(weight);
    context.save(inverse_deviation);
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor& x = context.saved(0);
    const Tensor& weight = context.saved(1);
    const Tensor& inverse_deviation = context.saved(2);
    Tensor dx = context.wants(0) ? empty_like(x) : Tensor();
    Tensor dweight = gradient_of_columns(context.wants(1), x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      rms_norm_backward(device, x.shape().rows(), x.shape().columns(), x.data<T>(), weight.data_or_null<T>(),
                        inverse_deviation.data<T>(), dy.data<T>(), dx.data_or_null<T>(),
                        dweight.data_or_null<T>());
    });
    return {dx, dweight};
  }
};

/// Normalised, weighted and gated by F; the backward is in tensor/kernels/norm.h.
template <class F>
struct GatedRmsNorm {
  static constexpr std::string_view name = "gated_rms_norm";
  GateOrder order;
  double eps;

  Tensor forward(Context& context, const Tensor& x, const Tensor& gate, const Tensor& weight) const {
    Tensor y = empty_like(x);
    Tensor inverse_deviation = Tensor::empty(x.shape().drop_last(), x.dtype(), x.device());
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      gated_rms_norm_forward<F>(device, x.shape().rows(), x.shape().columns(), order, eps, x.data<T>(),
                                gate.data<T>(), weight.data_or_null<T>(), y.data<T>(),
                                inverse_deviation.data<T>());
    });
    context.save(x);
    context.save(gate);
    context.save(weight);
    context.save(inverse_deviation);
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor& x = context.saved(0);
    const Tensor& gate = context.saved(1);
    const Tensor& weight = context.saved(2);
    const Tensor& inverse_deviation = context.saved(3);
    Tensor dx = empty_like(x);
    Tensor dgate = empty_like(gate);
    Tensor dweight = gradient_of_columns(context.wants(2), x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      gated_rms_norm_backward<F>(device, x.shape().rows(), x.shape().columns(), order, x.data<T>(),
                                 gate.data<T>(), weight.data_or_null<T>(), inverse_deviation.data<T>(),
                                 dy.data<T>(), dx.data<T>(), dgate.data<T>(), dweight.data_or_null<T>());
    });
    return {dx, dgate, dweight};
  }
};

/// y = x / sqrt(sum of x^2 + eps); the backward is in tensor/kernels/norm.h.
struct L2Normalize {
  static constexpr std::string_view name = "l2_normalize";
  double eps;

  Tensor forward(Context& context, const Tensor& x) const {
    Tensor y = empty_like(x);
    Tensor inverse_length = Tensor::empty(x.shape().drop_last(), x.dtype(), x.device());
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      l2_normalize_forward(device, x.shape().rows(), x.shape().columns(), eps, x.data<T>(), y.data<T>(),
                           inverse_length.data<T>());
    });
    context.save(x);
    context.save(inverse_length);
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor& x = context.saved(0);
    const Tensor& inverse_length = context.saved(1);
    Tensor dx = empty_like(x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      l2_normalize_backward(device, x.shape().rows(), x.shape().columns(), x.data<T>(),
                            inverse_length.data<T>(), dy.data<T>(), dx.data<T>());
    });
    return {dx};
  }
};

void check_operands(std::string_view op, double eps, const Variable& x, const Variable& weight,
                    const Variable& bias) {
  check_usage(eps > 0, "[", op, "] eps ", eps, "; allowed: eps > 0");
  check(x.shape().rank() >= 1, "[", op, "] x is a scalar; it needs a last axis");
  for (const Variable& operand : {weight, bias}) {
    check(!operand.defined() || operand.shape() == Shape{x.shape()[-1]}, "[", op,
          "] weight or bias of shape ", operand.shape(), " for x ", x.shape(),
          "; it must have the size of the last axis");
  }
}

}  // namespace

Variable layer_norm(const Variable& x, const Variable& weight, const Variable& bias, double eps) {
  check_operands(LayerNorm::name, eps, x, weight, bias);
  return apply(LayerNorm{eps}, x, weight, bias);
}

Variable rms_norm(const Variable& x, const Variable& weight, double eps) {
  check_operands(RmsNorm::name, eps, x, weight, {});
  return apply(RmsNorm{eps}, x, weight);
}

Variable gated_rms_norm(const Variable& x, const Variable& gate, const Variable& weight,
                        const GatedRmsNormOptions& options) {
  check_operands(GatedRmsNorm<Silu>::name, options.eps, x, weight, {});
  check(gate.shape() == x.shape(), "[gated_rms_norm] gate ", gate.shape(), " for x ", x.shape(),
        "; they must have the same shape");
  if (options.function == GateFunction::silu) {
    return apply(GatedRmsNorm<Silu>{options.order, options.eps}, x, gate, weight);
  }
  return apply(GatedRmsNorm<Sigmoid>{options.order, options.eps}, x, gate, weight);
}

Variable l2_normalize(const Variable& x, double eps) {
  check_operands(L2Normalize::name, eps, x, {}, {});
  return apply(L2Normalize{eps}, x);
}

std::vector<GradCase> norm_cases(CaseInputs& inputs) {
  using Inputs = const std::vector<Variable>&;
  const auto gated = [&](std::string name, const Shape& shape, const GatedRmsNormOptions& options) {
    return GradCase{
        "gated_rms_norm, " + std::move(name),
        {inputs.normal("x", shape), inputs.normal("gate", shape), inputs.normal("weight", {shape[-1]})},
        [options](Inputs in) { return std::vector{gated_rms_norm(in[0], in[1], in[2], options)}; }};
  };
  return {
      {"layer_norm",
       {inputs.normal("x", {2, 3, 7}), inputs.normal("weight", {7}), inputs.normal("bias", {7})},
       [](Inputs in) { return std::vector{layer_norm(in[0], in[1], in[2])}; }},
      {"layer_norm of long rows, large eps",
       {inputs.normal("x", {2, 37}), inputs.normal("weight", {37}), inputs.normal("bias", {37})},
       [](Inputs in) { return std::vector{layer_norm(in[0], in[1], in[2], 0.25)}; }},
      {"layer_norm with bias alone",
       {inputs.normal("x", {5, 4}), inputs.normal("bias", {4})},
       [](Inputs in) { return std::vector{layer_norm(in[0], {}, in[1])}; }},
      {"rms_norm",
       {inputs.normal("x", {2, 3, 7}), inputs.normal("weight", {7})},
       [](Inputs in) { return std::vector{rms_norm(in[0], in[1])}; }},
      {"rms_norm without weight, large eps",
       {inputs.normal("x", {5, 19})},
       [](Inputs in) { return std::vector{rms_norm(in[0], {}, 0.25)}; }},
      gated("norm first, silu", {2, 3, 7}, {}),
      gated("norm first, sigmoid, long rows, large eps", {3, 37},
            {.function = GateFunction::sigmoid, .eps = 0.25}),
      gated("gate first, silu, long rows", {3, 37}, {.order = GateOrder::gate_first}),
      gated("gate first, sigmoid, large eps", {5, 4},
            {.order = GateOrder::gate_first, .function = GateFunction::sigmoid, .eps = 0.25}),
      {"gated_rms_norm without weight",
       {inputs.normal("x", {4, 5}), inputs.normal("gate", {4, 5})},
       [](Inputs in) { return std::vector{gated_rms_norm(in[0], in[1], {})}; }},
      {"l2_normalize",
       {inputs.normal("x", {2, 3, 7})},
       [](Inputs in) { return std::vector{l2_normalize(in[0])}; }},
      {"l2_normalize of long rows, large eps",
       {inputs.normal("x", {5, 19})},
       [](Inputs in) { return std::vector{l2_normalize(in[0], 9)}; }},
  };
}

}  // namespace mixgrad
