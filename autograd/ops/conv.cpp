#include "autograd/ops/conv.h"

#include "autograd/documents.h"
#include "autograd/op.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/conv.h"

namespace mixgrad {

namespace {

/// Equations and backward in tensor/kernels/conv.h. Saved: the inputs.
struct CausalConv1d {
  static constexpr std::string_view name = "causal_conv1d";
  ConvShape shape;
  Tensor documents;
  bool final_state;

  Tensors forward(Context& context, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const Tensor& initial_state) const {
    Tensor y = empty_like(x);
    Tensor state = empty_if(final_state, {shape.batch, shape.taps - 1, shape.channels}, x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      causal_conv1d_forward(device, shape, x.data<T>(), weight.data<T>(), bias.data_or_null<T>(),
                            initial_state.data_or_null<T>(), y.data<T>(), state.data_or_null<T>(),
                            documents.data_or_null<int32_t>());
    });
    for (const Tensor& tensor : {x, weight, bias, initial_state}) context.save(tensor);
    return final_state ? Tensors{y, state} : Tensors{y};
  }

  Tensors backward(const Context& context, const Tensors& gradients) const {
    const Tensor& x = context.saved(0);
    const Tensor& weight = context.saved(1);
    const Tensor& bias = context.saved(2);
    const Tensor& initial_state = context.saved(3);
    const Tensor& dy = gradients[0];
    const Tensor dstate = final_state ? gradients[1] : Tensor();
    Tensor dx = empty_like(x);
    Tensor dweight = empty_if(context.wants(1), weight.shape(), x);
    Tensor dbias = empty_if(context.wants(2), bias.shape(), x);
    Tensor dinitial_state = empty_if(context.wants(3), initial_state.shape(), x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      causal_conv1d_backward(device, shape, x.data<T>(), weight.data<T>(), bias.data_or_null<T>(),
                             initial_state.data_or_null<T>(), dy.data_or_null<T>(), dstate.data_or_null<T>(),
                             dx.data<T>(), dweight.data_or_null<T>(), dbias.data_or_null<T>(),
                             dinitial_state.data_or_null<T>(), documents.data_or_null<int32_t>());
    });
    return {dx, dweight, dbias, dinitial_state};
  }
};

}  // namespace

Convolution causal_conv1d(const Variable& x, const Variable& weight, const Variable& bias,
                          const Variable& initial_state, const ConvOptions& options) {
  check(x.shape().rank() == 3, "[causal_conv1d] x ", x.shape(), "; allowed: [B, T, D]");
  const int64_t batch = x.shape()[0], length = x.shape()[1], channels = x.shape()[2];
  check(weight.shape().rank() == 2 && weight.shape()[0] == channels && weight.shape()[1] > 0,
        "[causal_conv1d] weight ", weight.shape(), " for x ", x.shape(), "; allowed: (", channels,
        ", W) with W of 1 or more");
  const int64_t taps = weight.shape()[1];
  check(!bias.defined() || bias.shape() == Shape{channels}, "[causal_conv1d] bias ", bias.shape(),
        "; allowed: ", Shape{channels});
  const Shape state_shape{batch, taps - 1, channels};
  check(!initial_state.defined() || initial_state.shape() == state_shape, "[causal_conv1d] initial_state ",
        initial_state.shape(), "; allowed: ", state_shape);
  check_documents("causal_conv1d", options.documents, batch, length);
  const ConvShape shape{
      .batch = batch, .length = length, .channels = channels, .taps = taps, .silu = options.silu};
  const Tensor documents = options.documents.to(x.value().device());
  const auto outputs =
      apply(CausalConv1d{shape, documents, options.final_state}, x, weight, bias, initial_state);
  return {.output = outputs[0], .state = options.final_state ? outputs[1] : Variable()};
}

namespace {

/// A case whose inputs are x, weight and, as they are there, bias and initial state.
struct CaseParts {
  bool bias = false;
  bool state = false;
  ConvOptions options{};
  int64_t batch = 2, length = 7, channels = 3, taps = 4;
};

GradCase conv_case(std::string name, CaseInputs& inputs, const CaseParts& parts) {
  GradCase result{"causal_conv1d, " + std::move(name),
                  {inputs.normal("x", {parts.batch, parts.length, parts.channels}),
                   inputs.normal("weight", {parts.channels, parts.taps})},
                  {}};
  if (parts.bias) result.inputs.push_back(inputs.normal("bias", {parts.channels}));
  if (parts.state) {
    result.inputs.push_back(inputs.normal("initial_state", {parts.batch, parts.taps - 1, parts.channels}));
  }
  result.function = [parts](const std::vector<Variable>& in) {
    const Variable bias = parts.bias ? in[2] : Variable();
    const Variable state = parts.state ? in.back() : Variable();
    const Convolution got = causal_conv1d(in[0], in[1], bias, state, parts.options);
    return parts.options.final_state ? std::vector{got.output, got.state} : std::vector{got.output};
  };
  return result;
}

}  // namespace

std::vector<GradCase> conv_cases(CaseInputs& inputs) {
  const Tensor documents = Tensor::from(std::vector<int32_t>{1, 0, 1, 0, 0, 1, 0,   // from zeros
                                                             0, 0, 0, 0, 0, 1, 1},  // from the initial state
                                        {2, 7});
  return {
      conv_case("plain, output alone", inputs, {.options = {.final_state = false}}),
      conv_case("bias and states", inputs, {.bias = true, .state = true}),
      conv_case("silu, bias and states", inputs, {.bias = true, .state = true, .options = {.silu = true}}),
      conv_case("silu, state out alone, more channels than a tile", inputs,
                {.options = {.silu = true}, .batch = 1, .length = 4, .channels = 67, .taps = 3}),
      conv_case("fewer tokens than the state has", inputs, {.bias = true, .state = true, .length = 2}),
      conv_case("documents, and states", inputs,
                {.bias = true, .state = true, .options = {.silu = true, .documents = documents}}),
      conv_case("one tap", inputs,
                {.bias = true, .options = {.silu = true, .final_state = false}, .taps = 1}),
  };
}

}  // namespace mixgrad
