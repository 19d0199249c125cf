#include "autograd/ops/rope.h"

#include <numeric>

#include "autograd/op.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/rope.h"

namespace mixgrad {

namespace {

/// y is x, rotated by angles that grow with the position; dx is dy, rotated back.
struct Rope {
  static constexpr std::string_view name = "rope";
  double theta;
  Tensor positions;

  RopeShape shape(const Tensor& x) const {
    return {x.shape()[0], x.shape()[1], x.shape()[2], x.shape()[3], theta};
  }

  Tensor forward(Context&, const Tensor& x) const {
    Tensor y = empty_like(x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      rope_forward(device, shape(x), positions.data<int64_t>(), heads<T>(x), heads<T>(y));
    });
    return y;
  }

  Tensors backward(const Context&, const Tensor& dy) const {
    Tensor dx = empty_like(dy);
    dispatch(dy, [&](auto device, auto type) {
      using T = decltype(type);
      rope_backward(device, shape(dy), positions.data<int64_t>(), heads<T>(dy), heads<T>(dx));
    });
    return {dx};
  }
};

void check_heads(const Variable& x, double theta) {
  check(x.shape().rank() == 4, "[rope] x ", x.shape(), "; it must be [B, T, H, d]");
  check_usage(x.shape()[3] % 2 == 0, "[rope] head size ", x.shape()[3], " is odd; it must be even");
  check_usage(theta > 0, "[rope] theta ", theta, "; allowed: theta > 0");
}

}  // namespace

Variable rope(const Variable& x, const Tensor& positions, double theta) {
  check_heads(x, theta);
  check(positions.shape() == Shape{x.shape()[1]}, "[rope] positions ", positions.shape(), " for x ",
        x.shape(), "; they must be [T]");
  return apply(Rope{theta, positions.to(x.value().device())}, x);
}

Variable rope(const Variable& x, int64_t first_position, double theta) {
  check_heads(x, theta);
  std::vector<int64_t> positions(x.shape()[1]);
  std::iota(positions.begin(), positions.end(), first_position);
  return rope(x, Tensor::from(positions, {x.shape()[1]}), theta);
}

std::vector<GradCase> rope_cases(CaseInputs& inputs) {
  using Inputs = const std::vector<Variable>&;
  return {
      {"rope", {inputs.normal("x", {2, 3, 2, 6})}, [](Inputs in) { return std::vector{rope(in[0])}; }},
      {"rope, one pair far away",
       {inputs.normal("x", {1, 4, 1, 2})},
       [](Inputs in) { return std::vector{rope(in[0], 1000000, 500.0)}; }},
      {"rope, positions in no order",
       {inputs.normal("x", {1, 3, 2, 4})},
       [](Inputs in) {
         const Tensor positions =
             Tensor::from(std::vector<int64_t>{7, 0, 131071}, {3}, in[0].value().device());
         return std::vector{rope(in[0], positions)};
       }},
  };
}

}  // namespace mixgrad
