#include "autograd/ops/concatenate.h"

#include "autograd/op.h"

namespace mixgrad {

namespace {

/// y = [a; b] along axis 1; da and db are the two parts of dy.
struct Concatenate {
  static constexpr std::string_view name = "concatenate";
  int64_t a_length;

  Tensor forward(Context&, const Tensor& a, const Tensor& b) const {
    Shape shape = a.shape();
    shape[1] += b.shape()[1];
    Tensor y = Tensor::empty(shape, a.dtype(), a.device());
    y.narrow(1, 0, a_length).copy_from(a);
    y.narrow(1, a_length, b.shape()[1]).copy_from(b);
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const auto part = [&](int input, int64_t start, int64_t length) {
      return context.wants(input) ? dy.narrow(1, start, length).contiguous() : Tensor();
    };
    return {part(0, 0, a_length), part(1, a_length, dy.shape()[1] - a_length)};
  }
};

}  // namespace

Variable concatenate(const Variable& a, const Variable& b) {
  Shape like_b = a.shape();
  const bool sequences = a.shape().rank() >= 2 && b.shape().rank() == a.shape().rank();
  if (sequences) like_b[1] = b.shape()[1];
  check(sequences && like_b == b.shape(), "[concatenate] a ", a.shape(), " and b ", b.shape(),
        "; only axis 1 may differ");
  return apply(Concatenate{a.shape()[1]}, a, b);
}

std::vector<GradCase> concatenate_cases(CaseInputs& inputs) {
  using Inputs = const std::vector<Variable>&;
  return {{"concatenate", {inputs.normal("a", {2, 3, 2}), inputs.normal("b", {2, 4, 2})}, [](Inputs in) {
             return std::vector{concatenate(in[0], in[1])};
           }}};
}

}  // namespace mixgrad
