// The forgetting gate: values at both ends, sums over tokens and channels, messages, repeatability.
#include "autograd/ops/decay_gate.h"

#include <cmath>

#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

using Values = std::vector<double>;

}  // namespace

TEST_CASE("tensor/decay_gate: a gate is below 0 and finite at both ends") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable a = leaf({0, -200, 500, 1, -1, 2}, {1, 3, 2}, device, dtype);
    const Variable rate = leaf({std::log(2.0), 0}, {2}, device, dtype);
    const Variable bias = leaf({0, 1}, {2}, device, dtype);
    const Variable g = decay_gate(a, rate, bias);
    backward({g}, {Tensor::full({1, 3, 2}, 1, dtype, device)});
    const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
    const Values values = {-2 * std::log(2.0), 0, -1000, -softplus(2), -2 * softplus(-1), -softplus(3)};
    for (int i = 0; i < 6; ++i) {
      CAPTURE(i);
      // Float errs by 1e-7 of a value; the naive logarithm of 1 + exp(500) is inf.
      CHECK(g.value().to_vector()[i] == doctest::Approx(values[i]).epsilon(1e-6));
      CHECK(std::isfinite(a.grad().to_vector()[i]));
    }
    // dA_log is the sum of g, dbias that of da.
    CHECK(rate.grad().to_vector()[0] == doctest::Approx(values[0] + values[2] + values[4]).epsilon(1e-6));
    const Values da = a.grad().to_vector();
    CHECK(da[0] == doctest::Approx(-1).epsilon(1e-6));
    CHECK(da[2] == doctest::Approx(-2).epsilon(1e-6));
    CHECK(bias.grad().to_vector()[1] == doctest::Approx(da[1] + da[3] + da[5]).epsilon(1e-6));
  });
}

TEST_CASE("tensor/decay_gate: gradients of rate and bias sum over all tokens and a rate over its channels") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const int64_t tokens = 20011, heads = 2, channels = 3;
    const Variable a(Tensor::zeros({1, tokens, heads, channels}, dtype, device), true);
    const Variable rate(Tensor::zeros({heads}, dtype, device), true);
    const Variable bias(Tensor::zeros({heads, channels}, dtype, device), true);
    backward({decay_gate(a, rate, bias)}, {Tensor::full(a.shape(), 1, dtype, device)});
    const double count = static_cast<double>(tokens);
    // Float sums err by less than 1e-5 of the total; without a block of tokens a tenth is missing.
    for (const double value : bias.grad().to_vector())
      CHECK(value == doctest::Approx(-count / 2).epsilon(1e-4));
    for (const double value : rate.grad().to_vector()) {
      CHECK(value == doctest::Approx(-3 * count * std::log(2.0)).epsilon(1e-4));
    }
  });
}

TEST_CASE("tensor/decay_gate: no tokens leave gradients of 0") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable a(Tensor::zeros({2, 0, 3}, dtype, device), true);
    const Variable rate(Tensor::zeros({3}, dtype, device), true);
    const Variable bias(Tensor::zeros({3}, dtype, device), true);
    const Variable g = decay_gate(a, rate, bias);
    backward({g}, {g.value()});
    CHECK(a.grad().shape() == Shape{2, 0, 3});
    CHECK(rate.grad().to_vector() == Values(3, 0));
    CHECK(bias.grad().to_vector() == Values(3, 0));
  });
}

TEST_CASE("tensor/decay_gate: operands that do not fit are named") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const auto zeros = [&](const Shape& shape) { return Variable(Tensor::zeros(shape, dtype, device)); };
    CHECK(error_of([&] {
            decay_gate(zeros({2, 3}), zeros({3}), zeros({3}));
          }) == "[decay_gate] a (2, 3); allowed: [B, T, H], or [B, T, H, dk] for a gate per channel");
    CHECK(error_of([&] {
            decay_gate(zeros({1, 2, 3}), zeros({2}), zeros({3}));
          }) == "[decay_gate] A_log (2) for a (1, 2, 3); allowed: (3)");
    CHECK(error_of([&] {
            decay_gate(zeros({1, 2, 3, 4}), zeros({3}), zeros({3}));
          }) == "[decay_gate] dt_bias (3) for a (1, 2, 3, 4); allowed: (3, 4)");
  });
}

TEST_CASE("tensor/decay_gate: the number of threads changes no bit") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Shape shape{3, 700, 5, 7};
    const Values values = waves(shape.elements());
    check_same_with_any_threads([&] {
      const Variable a = leaf(values, shape, device, dtype);
      const Variable rate = leaf(waves(5), {5}, device, dtype);
      const Variable bias = leaf(waves(35), {5, 7}, device, dtype);
      const Variable g = decay_gate(a, rate, bias);
      backward({g}, {a.value()});
      Values all = g.value().to_vector();
      for (const Variable& input : {a, rate, bias}) {
        const Values more = input.grad().to_vector();
        all.insert(all.end(), more.begin(), more.end());
      }
      return all;
    });
  });
}

}  // namespace mixgrad
