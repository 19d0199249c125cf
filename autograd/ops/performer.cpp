#include "autograd/ops/performer.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/linear.h"

namespace mixgrad {

Variable performer_features(const Variable& x, const Variable& W, double offset) {
  check(W.shape().rank() == 2 && x.shape().rank() > 0 && x.shape()[-1] == W.shape()[1], "[performer] x ",
        x.shape(), " and W ", W.shape(), "; allowed: [..., d] and [m, d]");
  const auto features = static_cast<double>(W.shape()[0]);
  const Variable scaled = scale(x, std::pow(static_cast<double>(W.shape()[1]), -0.25));
  const Variable halves(Tensor::full({1, W.shape()[1]}, -0.5, x.dtype(), x.value().device()));
  const Variable half_length = linear(multiply(scaled, scaled), halves);  // -|x'|^2 / 2, [..., 1]
  const Variable exponents = add(linear(scaled, W), half_length);
  return scale(add_scalar(exp(exponents), offset), 1 / std::sqrt(features));
}

std::vector<GradCase> performer_cases(CaseInputs& inputs) {
  return {
      {"performer features",
       {inputs.normal("x", {2, 3, 2, 4}), inputs.normal("W", {5, 4})},
       [](const std::vector<Variable>& in) { return std::vector{performer_features(in[0], in[1], 1e-2)}; }}};
}

}  // namespace mixgrad
