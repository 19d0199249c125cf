// Normalisation: values at the edges, sums of gradients, messages, repeatability.
#include "autograd/ops/norm.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

using Values = std::vector<double>;

}  // namespace

TEST_CASE("tensor/norm: RMS norm where the squares are tiny or huge") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const auto rms_of_constant = [&](double value, double eps) {
      const Variable x(Tensor::full({2, 32}, value, dtype, device), true);
      const Variable y = rms_norm(x, {}, eps);
      backward({y}, {Tensor::full({2, 32}, 1, dtype, device)});
      for (const double gradient : x.grad().to_vector()) CHECK(std::isfinite(gradient));
      const Values values = y.value().to_vector();
      for (const double entry : values) CHECK(entry == values[0]);
      return values[0];
    };
    CHECK(rms_of_constant(0, 1e-5) == 0);
    // eps outside the root would give 0.990 and 0.999.
    CHECK(rms_of_constant(1e-3, 1e-5) == doctest::Approx(0.301511).epsilon(1e-6));
    CHECK(rms_of_constant(1e-3, 1e-6) == doctest::Approx(0.707107).epsilon(1e-6));
    CHECK(rms_of_constant(1e18, 1e-5) == doctest::Approx(1));
    CHECK(rms_of_constant(-1e18, 1e-5) == doctest::Approx(-1));
    CHECK(rms_of_constant(1e30, 1e-5) == doctest::Approx(1));  // the sum of float squares would be inf
  });
}

TEST_CASE("tensor/norm: layer norm of a constant row is the bias") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const double value : {0.0, 0.1, -3.0, 1e18}) {
      CAPTURE(value);
      const Variable x(Tensor::full({2, 7}, value, dtype, device), true);
      const Variable weight = leaf({1, 2, 3, 4, 5, 6, 7}, {7}, device, dtype);
      const Variable bias = leaf({7, 6, 5, 4, 3, 2, 1}, {7}, device, dtype);
      const Variable y = layer_norm(x, weight, bias);
      CHECK(y.value().to_vector() == Values{7, 6, 5, 4, 3, 2, 1, 7, 6, 5, 4, 3, 2, 1});
      backward({y}, {Tensor::full({2, 7}, 1, dtype, device)});
      CHECK(weight.grad().to_vector() == Values(7, 0));
      CHECK(bias.grad().to_vector() == Values(7, 2));
      // (w - mean w) / sqrt(eps)
      CHECK(x.grad().to_vector()[0] == doctest::Approx(-3 / std::sqrt(1e-5)));
    }
  });
}

TEST_CASE("tensor/norm: layer norm of one column is the bias and learns nothing else") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable x = leaf({-3, 0.1, 1e18}, {3, 1}, device, dtype);
    const Variable weight = leaf({2}, {1}, device, dtype);
    const Variable bias = leaf({0.5}, {1}, device, dtype);
    const Variable y = layer_norm(x, weight, bias);
    CHECK(y.value().to_vector() == Values(3, 0.5));
    backward({y}, {Tensor::from(Values{1, 2, 4}, {3, 1}, device).to(dtype)});
    CHECK(x.grad().to_vector() == Values(3, 0));
    CHECK(weight.grad().to_vector() == Values{0});
    CHECK(bias.grad().to_vector() == Values{7});
  });
}

TEST_CASE("tensor/norm: layer norm does not lose the variance beside a large mean") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable x = leaf({65536, 65537, 65538, 65539}, {4}, device, dtype);
    const Values y = layer_norm(x).value().to_vector();
    // In float E[x^2] - E[x]^2 errs by up to 512 where the variance is 1.25.
    const double root = std::sqrt(1.25 + 1e-5);
    for (int i = 0; i < 4; ++i) CHECK(y[i] == doctest::Approx((i - 1.5) / root).epsilon(1e-6));
  });
}

TEST_CASE("tensor/norm: gradients are blind to what the norm removes") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const int64_t rows = 5, columns = 83;
    const Variable x = leaf(waves(rows * columns), {rows, columns}, device, dtype);
    const Variable z = leaf(waves(rows * columns), {rows, columns}, device, dtype);
    const Variable weight = leaf(waves(columns), {columns}, device, dtype);
    const Tensor cotangent = Tensor::from(waves(2 * rows * columns), {2 * rows, columns}, device).to(dtype);
    backward({layer_norm(x, weight), rms_norm(z, weight)},
             {cotangent.narrow(0, 0, rows), cotangent.narrow(0, rows, rows)});
    const Values dx = x.grad().to_vector(), dz = z.grad().to_vector(), values = z.value().to_vector();
    for (int64_t row = 0; row < rows; ++row) {
      double shift = 0, scale = 0;
      for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
        shift += dx[i];
        scale += dz[i] * values[i];
      }
      // Rounding in float: 5e-6; without the term of the mean, or of the products: 1 and more.
      CHECK(std::abs(shift) < 2e-5);
      CHECK(std::abs(scale) < 2e-4);  // eps = 1e-6 leaves 1e-5 of it
    }
  });
}

TEST_CASE("tensor/norm: gradients of weight and bias sum over all rows") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    if (is_simulated(device)) return;
    // Rows of +-1 have mean 0 and deviation 1, so that each entry of the sums is 1 but for eps.
    const int64_t rows = 20011, columns = 6;
    Values values(rows * columns);
    for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 1 : -1;
    const Variable x = leaf(values, {rows, columns}, device, dtype);
    const Variable weight(Tensor::full({columns}, 1, dtype, device), true);
    const Variable bias(Tensor::zeros({columns}, dtype, device), true);
    backward({layer_norm(x, weight, bias)}, {Tensor::full({rows, columns}, 1, dtype, device)});
    const Values dweight = weight.grad().to_vector();
    // Float sums err by 2e-6; without a block of rows: 0.1.
    for (int64_t j = 0; j < columns; ++j) {
      CHECK(dweight[j] == doctest::Approx((j % 2 == 0 ? 1 : -1) * rows / std::sqrt(1 + 1e-5)).epsilon(1e-5));
    }
    CHECK(bias.grad().to_vector() == Values(columns, rows));
  });
}

TEST_CASE("tensor/norm: a gated RMS norm is its parts one after the other") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const int64_t rows = 37, columns = 53;
    const Values values = waves(3 * rows * columns);
    const auto part = [&](int64_t index) {
      const auto begin = values.begin() + index * rows * columns;
      return Values(begin, begin + rows * columns);
    };
    const Tensor cotangent = Tensor::from(part(2), {rows, columns}, device).to(dtype);
    // All values and gradients of one way to compute it.
    const auto results = [&](const auto& f) {
      const Variable x = leaf(part(0), {rows, columns}, device, dtype);
      const Variable gate = leaf(part(1), {rows, columns}, device, dtype);
      const Variable weight = leaf(waves(columns), {columns}, device, dtype);
      const Variable y = f(x, gate, weight);
      backward({y}, {cotangent});
      Values all = y.value().to_vector();
      for (const Variable& input : {x, gate, weight}) {
        const Values more = input.grad().to_vector();
        all.insert(all.end(), more.begin(), more.end());
      }
      return all;
    };
    for (const GateFunction function : {GateFunction::silu, GateFunction::sigmoid}) {
      Variable (*activation)(const Variable&) = sigmoid;
      if (function == GateFunction::silu) activation = silu;
      for (const GateOrder order : {GateOrder::norm_first, GateOrder::gate_first}) {
        const Values fused = results([&](const Variable& x, const Variable& gate, const Variable& weight) {
          return gated_rms_norm(x, gate, weight, {.order = order, .function = function, .eps = 1e-3});
        });
        const Values parts = results([&](const Variable& x, const Variable& gate, const Variable& weight) {
          const Variable f = activation(gate);
          return order == GateOrder::norm_first ? multiply(rms_norm(x, weight, 1e-3), f)
                                                : rms_norm(multiply(x, f), weight, 1e-3);
        });
        double largest = 0;
        for (size_t i = 0; i < parts.size(); ++i) {
          largest = std::max(largest, std::abs(fused[i] - parts[i]));
        }
        // Rounding: 1.5e-6 in float, 3e-15 in double; the other order differs by more than 1.
        CHECK(largest < (dtype == DType::float32 ? 2e-5 : 1e-13));
      }
    }
  });
}

TEST_CASE("tensor/norm: L2 normalised rows have length 1 and eps decides for tiny ones") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const auto first_of_constant = [&](double value) {
      const Variable x(Tensor::full({2, 16}, value, dtype, device), true);
      const Variable y = l2_normalize(x);
      backward({y}, {Tensor::full({2, 16}, 1, dtype, device)});
      for (const double gradient : x.grad().to_vector()) CHECK(std::isfinite(gradient));
      return y.value().to_vector()[0];
    };
    CHECK(first_of_constant(0) == 0);
    // x / sqrt(16 x^2 + 1e-6): eps outside the root would give 0.2499 for 2.5e-4 and not 1 / sqrt(32).
    CHECK(first_of_constant(2.5e-4) == doctest::Approx(0.1767767).epsilon(1e-6));
    CHECK(first_of_constant(3) == doctest::Approx(0.25).epsilon(1e-6));
    CHECK(first_of_constant(-1e18) == doctest::Approx(-0.25).epsilon(1e-6));
    CHECK(first_of_constant(1e30) == doctest::Approx(0.25));  // the sum of float squares would be inf
  });
}

TEST_CASE("tensor/norm: gradients through L2 normalisation do not change the length") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const int64_t rows = 5, columns = 83;
    const Variable x = leaf(waves(rows * columns), {rows, columns}, device, dtype);
    const Tensor cotangent = Tensor::from(waves(2 * rows * columns), {2 * rows, columns}, device).to(dtype);
    backward({l2_normalize(x)}, {cotangent.narrow(0, rows, rows)});
    const Values dx = x.grad().to_vector(), values = x.value().to_vector();
    for (int64_t row = 0; row < rows; ++row) {
      double along = 0;
      for (int64_t i = row * columns; i < (row + 1) * columns; ++i) along += dx[i] * values[i];
      CHECK(std::abs(along) < 2e-6);  // in float 1.4e-7; without the second term 0.01 and more
    }
  });
}

TEST_CASE("tensor/norm: an absent weight is 1 and an absent bias 0") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable x = leaf(waves(22), {2, 11}, device, dtype);
    const Variable one(Tensor::full({11}, 1, dtype, device));
    const Variable zero(Tensor::zeros({11}, dtype, device));
    CHECK(layer_norm(x).value().to_vector() == layer_norm(x, one, zero).value().to_vector());
    CHECK(rms_norm(x).value().to_vector() == rms_norm(x, one).value().to_vector());
    CHECK(gated_rms_norm(x, x, {}).value().to_vector() == gated_rms_norm(x, x, one).value().to_vector());
  });
}

TEST_CASE("tensor/norm: rows and columns may be none") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const Shape& shape : {Shape{0, 7}, Shape{3, 0}}) {
      CAPTURE(shape);
      const Variable x(Tensor::zeros(shape, dtype, device), true);
      const Variable weight(Tensor::full({shape[1]}, 1, dtype, device), true);
      const Variable bias(Tensor::full({shape[1]}, 1, dtype, device), true);
      const Variable y = layer_norm(x, weight, bias), z = rms_norm(x, weight), unit = l2_normalize(x);
      const Variable gated = gated_rms_norm(x, x, weight);
      CHECK(y.shape() == shape);
      backward({y, z, gated, unit}, {y.value(), z.value(), gated.value(), unit.value()});
      CHECK(x.grad().shape() == shape);
      CHECK(weight.grad().to_vector() == Values(shape[1], 0));
      CHECK(bias.grad().to_vector() == Values(shape[1], 0));
    }
  });
}

TEST_CASE("tensor/norm: operands that do not fit are named") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable x(Tensor::zeros({2, 3}, dtype, device));
    const Variable wrong(Tensor::zeros({2}, dtype, device));
    CHECK(error_of([&] { layer_norm(x, {}, wrong); }) ==
          "[layer_norm] weight or bias of shape (2) for x (2, 3); it must have the size of the last axis");
    CHECK(error_of([&] { rms_norm(x, wrong); }).find("[rms_norm] weight") == 0);
    CHECK(error_of([&] { gated_rms_norm(x, wrong, {}); }) ==
          "[gated_rms_norm] gate (2) for x (2, 3); they must have the same shape");
    CHECK(error_of([&] { l2_normalize(x, -1); }) == "[l2_normalize] eps -1; allowed: eps > 0");
    CHECK(error_of([&] { rms_norm(x, {}, 0); }) == "[rms_norm] eps 0; allowed: eps > 0");
    CHECK_THROWS_AS(layer_norm(x, {}, {}, std::nan("")), UsageError);
    CHECK(error_of([&] { layer_norm(leaf({1}, {}, device, dtype)); }) ==
          "[layer_norm] x is a scalar; it needs a last axis");
  });
}

TEST_CASE("tensor/norm: the number of threads changes no bit") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    if (is_simulated(device)) return;
    const int64_t rows = 301, columns = 259;
    const Values values = waves(rows * columns), weights = waves(columns);
    check_same_with_any_threads([&] {
      const Variable x = leaf(values, {rows, columns}, device, dtype);
      const Variable weight = leaf(weights, {columns}, device, dtype);
      const Variable bias = leaf(weights, {columns}, device, dtype);
      const Variable y = layer_norm(x, weight, bias), z = rms_norm(x, weight), unit = l2_normalize(x);
      const Variable gated = gated_rms_norm(x, z, weight);
      backward({y, z, gated, unit}, {x.value(), z.value(), y.value(), y.value()});
      Values all = x.grad().to_vector();
      for (const Tensor& tensor :
           {y.value(), z.value(), gated.value(), unit.value(), weight.grad(), bias.grad()}) {
        const Values more = tensor.to_vector();
        all.insert(all.end(), more.begin(), more.end());
      }
      return all;
    });
  });
}

}  // namespace mixgrad
