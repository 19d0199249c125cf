// The tape: gradients that are summed where paths meet, cut where they should be, and never lost in silence.
#include "autograd/tape.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "autograd/op.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/linear.h"
#include "tensor/allocator.h"

namespace mixgrad {
namespace {

using Values = std::vector<double>;

Variable leaf(const Values& values, const Shape& shape) {
  return Variable(Tensor::from(values, shape), true);
}
Variable leaf(double value) { return leaf({value}, {}); }
Values grad(const Variable& variable) { return variable.grad().to_vector(); }

/// The message of the Error that f throws; empty when it throws none.
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Rounds to a whole number: an op without a backward.
struct Round {
  static constexpr std::string_view name = "round";
  Tensor forward(Context&, const Tensor& x) const { return Tensor::full(x.shape(), 3, x.dtype()); }
};

/// (2 x, 3 x): an op of two outputs that notes which gradients arrived.
struct TwoOutputs {
  static constexpr std::string_view name = "two_outputs";
  std::vector<bool>* arrived;

  Tensors forward(Context&, const Tensor& x) const {
    return {Tensor::full(x.shape(), 2 * x.item(), x.dtype()),
            Tensor::full(x.shape(), 3 * x.item(), x.dtype())};
  }
  Tensors backward(const Context&, const Tensors& dy) const {
    *arrived = {dy[0].defined(), dy[1].defined()};
    const double dx = (dy[0].defined() ? 2 * dy[0].item() : 0) + (dy[1].defined() ? 3 * dy[1].item() : 0);
    return {Tensor::full({}, dx, DType::float64)};
  }
};

}  // namespace

TEST_CASE("autograd/tape: the gradient of a repeated operand is summed to its shape") {
  SUBCASE("both operands repeated") {
    const Variable a = leaf({1, 2}, {2, 1}), b = leaf({3, 4, 5}, {1, 3});
    backward(sum(add(a, b)));
    CHECK(grad(a) == Values{3, 3});
    CHECK(grad(b) == Values{2, 2, 2});
    CHECK(a.grad().shape() == Shape{2, 1});
    CHECK(b.grad().shape() == Shape{1, 3});
  }
  SUBCASE("product over the last axis") {
    Values a_values(2 * 4 * 64), b_values(2 * 4);
    for (size_t i = 0; i < a_values.size(); ++i) a_values[i] = i % 5;
    for (size_t i = 0; i < b_values.size(); ++i) b_values[i] = i + 1;
    const Variable a = leaf(a_values, {2, 4, 64}), b = leaf(b_values, {2, 4, 1});
    backward(sum(multiply(a, b)));
    for (int64_t row = 0; row < 8; ++row) {
      double expected = 0;
      for (int64_t column = 0; column < 64; ++column) {
        CHECK(grad(a)[row * 64 + column] == b_values[row]);
        expected += a_values[row * 64 + column];
      }
      CHECK(grad(b)[row] == expected);
    }
  }
  SUBCASE("a scalar times a vector") {
    const Variable a = leaf(2), b = leaf({3, 4, 5}, {3});
    backward(sum(multiply(a, b)));
    CHECK(grad(a) == Values{12});
    CHECK(grad(b) == Values{2, 2, 2});
    CHECK(a.grad().shape() == Shape{});
  }
  SUBCASE("missing leading axes") {
    const Variable a = leaf({1, 2, 3}, {3}), b = leaf({1, 2, 3, 4, 5, 6}, {2, 1, 3});
    backward(sum(add(a, b)));
    CHECK(grad(a) == Values{2, 2, 2});
    CHECK(grad(b) == Values{1, 1, 1, 1, 1, 1});
  }
}

TEST_CASE("autograd/tape: a value that is used twice gets the sum of both gradients") {
  SUBCASE("distinct leaves of equal value") {
    const Variable a = leaf(3), b = leaf(3);
    backward(add(a, b));
    CHECK(grad(a) == Values{1});
    CHECK(grad(b) == Values{1});
  }
  SUBCASE("w + w") {
    const Variable w = leaf(3);
    backward(add(w, w));
    CHECK(grad(w) == Values{2});
  }
  SUBCASE("w w") {
    const Variable w = leaf(3);
    backward(multiply(w, w));
    CHECK(grad(w) == Values{6});
  }
  SUBCASE("through paths of different length") {  // y = 5 x + x^2 at x = 3, where dy/dx = 11
    const Variable x = leaf(3);
    backward(add(scale(scale(scale(x, 5), 2), 0.5), multiply(x, x)));
    CHECK(grad(x) == Values{11});
  }
  SUBCASE("a weight in two layers") {  // W W x with W = [w]: d/dw = 2 w x
    const Variable w = leaf({3}, {1, 1}), x = leaf({5}, {1});
    backward(linear(linear(x, w), w));
    CHECK(grad(w) == Values{30});
    CHECK(grad(x) == Values{9});
  }
  SUBCASE("one value as two roots") {
    const Variable x = leaf(3);
    const Variable y = scale(x, 4);
    backward({y, y}, {Tensor::full({}, 1, DType::float64), Tensor::full({}, 10, DType::float64)});
    CHECK(grad(x) == Values{44});
  }
}

TEST_CASE("autograd/tape: backward adds to what a leaf has until it is zeroed") {
  Generator generator(3);
  Variable x(normal({4, 3}, 1, generator, DType::float32), true);
  Variable w(normal({2, 3}, 1, generator, DType::float32), true);
  const auto pass = [&] { backward(sum(sigmoid(linear(x, w)))); };
  pass();
  const Values x_once = grad(x), w_once = grad(w);
  pass();
  for (size_t i = 0; i < x_once.size(); ++i) CHECK(grad(x)[i] == 2 * x_once[i]);
  for (size_t i = 0; i < w_once.size(); ++i) CHECK(grad(w)[i] == 2 * w_once[i]);
  x.zero_grad();
  w.zero_grad();
  CHECK_FALSE(x.grad().defined());
  pass();
  CHECK(grad(x) == x_once);
  CHECK(grad(w) == w_once);
}

TEST_CASE("autograd/tape: a second walk over the same graph is an error that names the op") {
  const Variable x = leaf(3);
  const Variable y = sigmoid(scale(x, 2));
  backward(y);
  const Values once = grad(x);
  const std::string message = error_of([&] { backward(y); });
  CHECK(contains(message, "'sigmoid'"));
  CHECK(contains(message, "second time"));
  CHECK(grad(x) == once);
}

TEST_CASE("autograd/tape: what was saved is freed by the walk though the result lives on") {
  const Allocator& allocator = Allocator::of({});
  Variable x(Tensor::full({1000}, 1, DType::float64), true);
  const int64_t before = allocator.stats().live_bytes;
  Variable y = sum(sigmoid(scale(x, 2)));  // saved: the 8000 bytes that scale returned
  CHECK(allocator.stats().live_bytes >= before + 8000);
  backward(y);
  x.zero_grad();
  CHECK(allocator.stats().live_bytes < before + 1000);  // y itself
  CHECK(y.value().item() == doctest::Approx(1000 / (1 + std::exp(-2.0))));
}

TEST_CASE("autograd/tape: an op without a backward refuses an input that requires a gradient") {
  const Variable x = leaf(3.2);
  const std::string message = error_of([&] { apply(Round{}, x); });
  CHECK(contains(message, "[round] has no backward"));
  CHECK(apply(Round{}, x.detach()).value().item() == 3);
  const NoGrad no_grad;
  CHECK(apply(Round{}, x).value().item() == 3);
}

TEST_CASE("autograd/tape: an inner tape gives the gradients of its leaves alone") {
  const Variable parameter = leaf(3), weight = leaf(5);
  const Variable outside = scale(parameter, 2);
  Variable loss;
  {
    const NoGrad no_grad;
    const InnerTape tape({weight});
    CHECK(recording());
    CHECK_FALSE(parameter.requires_grad());
    {
      const InnerTape innermost({parameter});
      CHECK(parameter.requires_grad());
      CHECK_FALSE(weight.requires_grad());
    }
    CHECK(weight.requires_grad());
    loss = multiply(multiply(parameter, weight), weight);
    backward(loss);
  }
  CHECK(recording());
  CHECK(grad(weight) == Values{30});
  CHECK_FALSE(parameter.grad().defined());
  backward(outside);  // the outer tape is as it was
  CHECK(grad(parameter) == Values{2});
}

TEST_CASE("autograd/tape: detach and NoGrad cut the graph") {
  const Variable x = leaf(3);
  SUBCASE("detach") {
    backward(multiply(x, x.detach()));
    CHECK(grad(x) == Values{3});
    CHECK_FALSE(scale(x.detach(), 2).requires_grad());
  }
  SUBCASE("NoGrad lasts as long as its object") {
    {
      const NoGrad outer;
      {
        const NoGrad inner;
        CHECK_FALSE(recording());
      }
      CHECK_FALSE(recording());
      CHECK_FALSE(scale(x, 2).requires_grad());
    }
    CHECK(recording());
    CHECK(scale(x, 2).requires_grad());
  }
  SUBCASE("NoGrad ends with an exception too") {
    error_of([] {
      const NoGrad no_grad;
      throw Error("stop");
    });
    CHECK(recording());
  }
  SUBCASE("nothing recorded is an error and not a missing gradient") {
    const Variable y = [&] {
      const NoGrad no_grad;
      return scale(x, 2);
    }();
    CHECK(contains(error_of([&] { backward(y); }), "no root depends on anything that requires a gradient"));
  }
}

TEST_CASE("autograd/tape: a chain of a million nodes overflows no stack") {
  constexpr int length = 1'000'000;
  const Variable x = leaf(3);
  const auto chain = [&] {
    Variable y = x;
    for (int i = 0; i < length; ++i) y = scale(y, i % 2 == 0 ? 2 : 0.5);
    return y;
  };
  SUBCASE("walked") {
    backward(chain());
    CHECK(grad(x) == Values{1});
  }
  SUBCASE("dropped without a walk") {
    CHECK(chain().value().item() == 3);
    CHECK_FALSE(x.grad().defined());
  }
}

TEST_CASE("autograd/tape: leaves never share the storage of their gradients") {
  SUBCASE("two leaves that one tensor was sent to") {
    Variable a = leaf({1, 2}, {2}), b = leaf({3, 4}, {2});
    backward(sum(add(a, b)));
    a.grad().fill(7);
    CHECK(grad(a) == Values{7, 7});
    CHECK(grad(b) == Values{1, 1});
  }
  SUBCASE("the caller's cotangent") {
    Variable a = leaf({1, 2}, {2});
    Tensor cotangent = Tensor::from(Values{5, 6}, {2});
    backward({reshape(a, {2, 1})}, {cotangent.reshape({2, 1})});
    a.grad().fill(7);
    CHECK(cotangent.to_vector() == Values{5, 6});
  }
  SUBCASE("an earlier gradient that somebody kept") {
    const Variable a = leaf({1, 2}, {2});
    backward(sum(a));
    const Tensor kept = a.grad();
    backward(sum(a));
    CHECK(kept.to_vector() == Values{1, 1});
    CHECK(grad(a) == Values{2, 2});
  }
}

TEST_CASE("autograd/tape: element types do not mix") {
  const Variable single(Tensor::zeros({2}, DType::float32), true), twice(Tensor::zeros({2}, DType::float64));
  CHECK(
      contains(error_of([&] { add(single, twice); }), "[add] input 1 is float64 on cpu, another is float32"));
  CHECK(contains(error_of([&] { backward({single}, {Tensor::zeros({2}, DType::float64)}); }),
                 "a cotangent of float64 for a root of float32"));
}

TEST_CASE("autograd/tape: a cotangent must be where its root is") {
  for (const Device device : available_devices()) {
    if (device == Device{}) continue;
    const Variable x = Variable(Tensor::zeros({3}, DType::float32, device), true);
    CHECK(contains(error_of([&] { backward({scale(x, 2)}, {Tensor::zeros({3}, DType::float32)}); }),
                   "a cotangent on cpu for a root on cuda:0"));
  }
}

TEST_CASE("autograd/tape: a cotangent must fit its root") {
  const Variable x = leaf({1, 2, 3}, {3});
  const Variable y = scale(x, 2);
  CHECK(contains(error_of([&] { backward(y); }), "a root of shape (3) needs a cotangent"));
  CHECK(contains(error_of([&] { backward({y}, {Tensor::zeros({2}, DType::float64)}); }),
                 "a cotangent of shape (2) for a root of shape (3)"));
  CHECK(contains(error_of([&] { backward({y}, {}); }), "1 roots but 0 cotangents"));
  CHECK_FALSE(x.grad().defined());
  backward({y}, {Tensor::from(Values{1, 10, 100}, {3})});  // none of the errors has used the graph up
  CHECK(grad(x) == Values{2, 20, 200});
}

TEST_CASE("autograd/tape: a root that is a leaf gets its cotangent as gradient") {
  const Variable x = leaf(3);
  backward(x);
  CHECK(grad(x) == Values{1});
}

TEST_CASE("autograd/tape: an integer variable requires no gradient") {
  CHECK(
      contains(error_of([] { Variable(Tensor::zeros({2}, DType::int32), true); }), "int32 has no gradient"));
  CHECK_FALSE(Variable(Tensor::zeros({2}, DType::int32)).requires_grad());
}

TEST_CASE("autograd/tape: an op of several outputs is told which of them matter") {
  std::vector<bool> arrived;
  const Variable x = leaf(5);
  SUBCASE("both") {
    const std::vector<Variable> y = apply(TwoOutputs{&arrived}, x);
    backward(multiply(y[0], y[1]));  // 6 x^2
    CHECK(grad(x) == Values{60});
    CHECK(arrived == std::vector<bool>{true, true});
  }
  SUBCASE("one") {
    const std::vector<Variable> y = apply(TwoOutputs{&arrived}, x);
    backward(y[1]);
    CHECK(grad(x) == Values{3});
    CHECK(arrived == std::vector<bool>{false, true});
  }
}

TEST_CASE("autograd/tape: an input that nobody differentiates costs no gradient") {
  const Variable x = leaf({1, 2, 3, 4}, {2, 2});
  const Variable w(Tensor::from(Values{1, 0, 0, 1}, {2, 2}));
  std::vector<int> inputs;
  set_backward_hook([&](std::string_view, int input, Tensor&) { inputs.push_back(input); });
  backward({linear(x, w)}, {Tensor::from(Values{1, 2, 3, 4}, {2, 2})});
  set_backward_hook({});
  CHECK(inputs == std::vector<int>{0});
  CHECK(grad(x) == Values{1, 2, 3, 4});
  CHECK_FALSE(w.grad().defined());
}

}  // namespace mixgrad
