#include "autograd/ops/decay_gate.h"

#include "autograd/op.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/decay_gate.h"

namespace mixgrad {

namespace {

/// g = -exp(A_log) softplus(a + dt_bias); the backward is in tensor/kernels/decay_gate.h. Saved: the inputs,
/// g.
struct DecayGate {
  static constexpr std::string_view name = "decay_gate";
  DecayGateShape shape;

  Tensor forward(Context& context, const Tensor& a, const Tensor& A_log, const Tensor& dt_bias) const {
    Tensor g = empty_like(a);
    dispatch(a, [&](auto device, auto type) {
      using T = decltype(type);
      decay_gate_forward(device, shape, a.data<T>(), A_log.data<T>(), dt_bias.data<T>(), g.data<T>());
    });
    context.save(a);
    context.save(A_log);
    context.save(dt_bias);
    context.save(g);
    return g;
  }

  Tensors backward(const Context& context, const Tensor& dg) const {
    const Tensor& a = context.saved(0);
    const Tensor& A_log = context.saved(1);
    const Tensor& dt_bias = context.saved(2);
    const Tensor& g = context.saved(3);
    Tensor da = context.wants(0) ? empty_like(a) : Tensor();
    Tensor dA_log = context.wants(1) ? empty_like(A_log) : Tensor();
    Tensor ddt_bias = context.wants(2) ? empty_like(dt_bias) : Tensor();
    dispatch(a, [&](auto device, auto type) {
      using T = decltype(type);
      decay_gate_backward(device, shape, a.data<T>(), A_log.data<T>(), dt_bias.data<T>(), g.data<T>(),
                          dg.data<T>(), da.data_or_null<T>(), dA_log.data_or_null<T>(),
                          ddt_bias.data_or_null<T>());
    });
    return {da, dA_log, ddt_bias};
  }
};

}  // namespace

Variable decay_gate(const Variable& a, const Variable& A_log, const Variable& dt_bias) {
  const Shape& shape = a.shape();
  check(shape.rank() == 3 || shape.rank() == 4, "[decay_gate] a ", shape,
        "; allowed: [B, T, H], or [B, T, H, dk] for a gate per channel");
  const int64_t heads = shape[2];
  const int64_t channels = shape.rank() == 4 ? shape[3] : 1;
  check(A_log.shape() == Shape{heads}, "[decay_gate] A_log ", A_log.shape(), " for a ", shape,
        "; allowed: ", Shape{heads});
  const Shape bias_shape = shape.rank() == 4 ? Shape{heads, channels} : Shape{heads};
  check(dt_bias.shape() == bias_shape, "[decay_gate] dt_bias ", dt_bias.shape(), " for a ", shape,
        "; allowed: ", bias_shape);
  return apply(DecayGate{{.tokens = shape[0] * shape[1], .heads = heads, .channels = channels}}, a, A_log,
               dt_bias);
}

std::vector<GradCase> decay_gate_cases(CaseInputs& inputs) {
  using Inputs = const std::vector<Variable>&;
  const auto gate = [](Inputs in) { return std::vector{decay_gate(in[0], in[1], in[2])}; };
  return {
      {"decay_gate, per head",
       {inputs.normal("a", {2, 5, 3}, 2), inputs.normal("A_log", {3}), inputs.normal("dt_bias", {3})},
       gate},
      {"decay_gate, per channel",
       {inputs.normal("a", {2, 3, 2, 5}, 2), inputs.normal("A_log", {2}), inputs.normal("dt_bias", {2, 5})},
       gate},
  };
}

}  // namespace mixgrad
