#include "autograd/ops/scan.h"

#include "autograd/documents.h"
#include "autograd/op.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/longhorn.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/scan.h"

namespace mixgrad {

namespace {

Shape state_shape(const ScanShape& s) { return {s.batch, s.channels, s.states}; }

/// Equations and backward in tensor/kernels/scan.h. Saved: the inputs and the states between chunks.
struct SelectiveScan {
  static constexpr std::string_view name = "selective_scan";
  ScanShape shape;
  bool final_state;
  Tensor documents;

  Tensors forward(Context& context, const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                  const Tensor& C, const Tensor& D, const Tensor& initial_state) const {
    Tensor y = empty_like(u);
    Tensor state = empty_if(final_state, state_shape(shape), u);
    Tensor checkpoints =
        empty_if(context.recording(), {shape.batch, shape.chunks(), shape.states, shape.channels}, u);
    dispatch(u, [&](auto device, auto type) {
      using T = decltype(type);
      const ScanInputs<T> in{u.data<T>(),
                             delta.data<T>(),
                             A.data_or_null<T>(),
                             B.data<T>(),
                             C.data<T>(),
                             D.data_or_null<T>(),
                             initial_state.data_or_null<T>(),
                             documents.data_or_null<int32_t>()};
      selective_scan_forward<T>(device, shape, in, y.data<T>(), state.data_or_null<T>(),
                                checkpoints.data_or_null<T>());
    });
    for (const Tensor& tensor : {u, delta, A, B, C, D, initial_state, checkpoints}) context.save(tensor);
    return final_state ? Tensors{y, state} : Tensors{y};
  }

  Tensors backward(const Context& context, const Tensors& gradients) const {
    const Tensor &u = context.saved(0), &delta = context.saved(1), &A = context.saved(2);
    const Tensor &B = context.saved(3), &C = context.saved(4), &D = context.saved(5);
    const Tensor &initial_state = context.saved(6), &checkpoints = context.saved(7);
    const Tensor& dy = gradients[0];
    const Tensor dstate = final_state ? gradients[1] : Tensor();
    Tensor du = empty_like(u), ddelta = empty_like(delta), dA = empty_if(A.defined(), A.shape(), u);
    Tensor dB = empty_like(B), dC = empty_like(C);
    Tensor dD = empty_if(context.wants(5), D.shape(), u);
    Tensor dinitial_state = empty_if(context.wants(6), state_shape(shape), u);
    dispatch(u, [&](auto device, auto type) {
      using T = decltype(type);
      const ScanInputs<T> in{u.data<T>(),
                             delta.data<T>(),
                             A.data_or_null<T>(),
                             B.data<T>(),
                             C.data<T>(),
                             D.data_or_null<T>(),
                             initial_state.data_or_null<T>(),
                             documents.data_or_null<int32_t>()};
      const ScanGradients<T> out{du.data<T>(),
                                 ddelta.data<T>(),
                                 dA.data_or_null<T>(),
                                 dB.data<T>(),
                                 dC.data<T>(),
                                 dD.data_or_null<T>(),
                                 dinitial_state.data_or_null<T>()};
      selective_scan_backward<T>(device, shape, in, checkpoints.data<T>(), dy.data_or_null<T>(),
                                 dstate.data_or_null<T>(), out);
    });
    return {du, ddelta, dA, dB, dC, dD, dinitial_state};
  }
};

void check_operand(const char* name, const Variable& given, const Shape& wanted) {
  check(given.shape() == wanted, "[selective_scan] ", name, " ", given.shape(), "; allowed: ", wanted);
}

/// D, initial_state and, where the decay doesn't need it, A may be undefined.
Scan scan(const ScanShape& shape, const Variable& u, const Variable& delta, const Variable& A,
          const Variable& B, const Variable& C, const Variable& D, const Variable& initial_state,
          bool final_state, const Tensor& documents) {
  const Tensor begins = documents.defined() ? documents.contiguous().to(u.value().device()) : documents;
  const auto outputs = apply(SelectiveScan{shape, final_state, begins}, u, delta, A, B, C, D, initial_state);
  return {.output = outputs[0], .state = final_state ? outputs[1] : Variable()};
}

}  // namespace

Scan selective_scan(const Variable& u, const Variable& delta, const Variable& A, const Variable& B,
                    const Variable& C, const Variable& D, const Variable& initial_state, bool final_state,
                    const Tensor& documents) {
  check(u.shape().rank() == 3, "[selective_scan] u ", u.shape(), "; allowed: [B, T, D]");
  check(A.shape().rank() == 2, "[selective_scan] A ", A.shape(), "; allowed: [D, N]");
  const ScanShape shape{
      .batch = u.shape()[0], .length = u.shape()[1], .channels = u.shape()[2], .states = A.shape()[1]};
  check_operand("delta", delta, u.shape());
  check_operand("A", A, {shape.channels, shape.states});
  check_operand("B", B, {shape.batch, shape.length, shape.states});
  check_operand("C", C, {shape.batch, shape.length, shape.states});
  if (D.defined()) check_operand("D", D, {shape.channels});
  if (initial_state.defined()) check_operand("initial_state", initial_state, state_shape(shape));
  check_documents("selective_scan", documents, shape.batch, shape.length);
  return scan(shape, u, delta, A, B, C, D, initial_state, final_state, documents);
}

Scan longhorn_diagonal(const Variable& q, const Variable& k, const Variable& v, const Variable& beta,
                       double scale, const Variable& initial_state, bool final_state,
                       const Tensor& documents) {
  const Shape &keys = k.shape(), &values = v.shape();
  check(keys.rank() == 4 && q.shape() == keys && values.rank() == 4 && values[0] == keys[0] &&
            values[1] == keys[1] && keys[2] > 0 && values[2] % keys[2] == 0 && beta.shape() == values,
        "[longhorn_diagonal] q ", q.shape(), ", k ", keys, ", v ", values, ", beta ", beta.shape(),
        "; allowed: [B, T, Hk, dk] twice and [B, T, H, dv] twice, where Hk divides H");
  const ScanShape shape{.batch = keys[0],
                        .length = keys[1],
                        .channels = values[2] * values[3],
                        .states = keys[3],
                        .groups = keys[2],
                        .decay = ScanDecay::written};
  if (initial_state.defined()) check_operand("initial_state", initial_state, state_shape(shape));
  check_documents("longhorn_diagonal", documents, shape.batch, shape.length);
  const Shape channels{shape.batch, shape.length, shape.channels};
  Scan read = scan(shape, reshape(v, channels), longhorn_rate(k, reshape(beta, channels)), {}, k,
                   mixgrad::scale(q, scale), {}, initial_state, final_state, documents);
  read.output = reshape(read.output, values);
  return read;
}

namespace {

/// A case whose inputs are u, delta, A, B, C and, as they are there, D and initial state.
struct CaseParts {
  bool skip = false;
  bool state = false;
  bool final_state = true;
  int64_t batch = 2, length = 5, channels = 3, states = 2;
};

GradCase scan_case(std::string name, CaseInputs& inputs, const CaseParts& parts) {
  const Shape tokens{parts.batch, parts.length, parts.channels};
  const Shape token_states{parts.batch, parts.length, parts.states};
  GradCase result{"selective_scan, " + std::move(name),
                  {inputs.normal("u", tokens), inputs.uniform("delta", tokens, 0.1, 1),
                   inputs.uniform("A", {parts.channels, parts.states}, -2, -0.1),
                   inputs.normal("B", token_states), inputs.normal("C", token_states)},
                  {}};
  if (parts.skip) result.inputs.push_back(inputs.normal("D", {parts.channels}));
  if (parts.state) {
    result.inputs.push_back(inputs.normal("initial_state", {parts.batch, parts.channels, parts.states}));
  }
  result.function = [parts](const std::vector<Variable>& in) {
    const Variable skip = parts.skip ? in[5] : Variable();
    const Variable state = parts.state ? in.back() : Variable();
    const Scan got = selective_scan(in[0], in[1], in[2], in[3], in[4], skip, state, parts.final_state);
    return parts.final_state ? std::vector{got.output, got.state} : std::vector{got.output};
  };
  return result;
}

}  // namespace

std::vector<GradCase> scan_cases(CaseInputs& inputs) {
  const Tensor documents = Tensor::from(std::vector<int32_t>{0, 0, 1, 0, 1, 1, 0, 0, 0, 0}, {2, 5});
  GradCase packed = scan_case("documents", inputs, {.skip = true, .state = true});
  packed.function = [documents](const std::vector<Variable>& in) {
    const Scan got = selective_scan(in[0], in[1], in[2], in[3], in[4], in[5], in[6], true, documents);
    return std::vector{got.output, got.state};
  };
  GradCase diagonal{
      "longhorn_diagonal, groups, documents and states",
      {inputs.normal("q", {2, 5, 2, 3}), inputs.normal("k", {2, 5, 2, 3}), inputs.normal("v", {2, 5, 4, 2}),
       inputs.uniform("beta", {2, 5, 4, 2}, 0.1, 2), inputs.normal("state", {2, 8, 3})},
      {}};
  diagonal.function = [documents](const std::vector<Variable>& in) {
    const Scan got = longhorn_diagonal(in[0], in[1], in[2], in[3], 0.5, in[4], true, documents);
    return std::vector{got.output, got.state};
  };
  return {
      packed,
      diagonal,
      scan_case("output alone", inputs, {.final_state = false}),
      scan_case("skip and states", inputs, {.skip = true, .state = true}),
      scan_case("one token", inputs, {.skip = true, .state = true, .length = 1}),
      scan_case("more channels than a tile", inputs,
                {.skip = true, .state = true, .batch = 1, .length = 3, .channels = 35, .states = 3}),
      scan_case("more tokens than a chunk", inputs,
                {.skip = true, .state = true, .batch = 1, .length = 67, .channels = 2, .states = 1}),
  };
}

}  // namespace mixgrad
