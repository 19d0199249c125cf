// Gaussian mixtures: hand-computed values, and what happens where densities under- or overflow.
#include "autograd/ops/gmm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "autograd/ops/elementwise.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

using Values = std::vector<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double floor_variance = 1e-4;

bool all_finite(const Values& values) {
  for (const double value : values) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

double largest_difference(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // so that NaN stays
  }
  return largest;
}

/// A mixture of leaves, its responsibilities of x, and a backward pass with a cotangent that differs from
/// element to element.
struct Posterior {
  Variable x, mean, omega, alpha, gamma;

  Posterior(const Tensor& points, const Tensor& means, const Tensor& omegas, const Tensor& alphas)
      : x(points.clone(), true),
        mean(means.clone(), true),
        omega(omegas.clone(), true),
        alpha(alphas.clone(), true) {
    gamma = gmm_responsibilities(x, mean, omega, alpha, floor_variance);
    Generator generator(4);
    backward({gamma}, {normal(gamma.shape(), 1, generator, gamma.dtype(), gamma.value().device())});
  }

  /// Rows sum to 1 (in float to 1e-6; a row that collapsed would give 0 or NaN) and all gradients are finite.
  void check_sound() const {
    const Values g = gamma.value().to_vector();
    const int64_t components = gamma.shape()[-1];
    for (size_t row = 0; row < g.size() / components; ++row) {
      double sum = 0;
      for (int64_t k = 0; k < components; ++k) sum += g[row * components + k];
      CHECK(std::abs(sum - 1) <= 1e-6);
    }
    for (const Variable& input : {x, mean, omega, alpha}) CHECK(all_finite(input.grad().to_vector()));
  }
};

/// Random values with the shapes of a mixture of two heads and of eleven points.
struct Inputs {
  Tensor x, mean, omega, alpha;

  Inputs(int64_t components, Device device, DType dtype) {
    Generator generator(3);
    x = normal({11, 2, 3}, 1, generator, dtype, device);
    mean = normal({2, components, 3}, 0.8, generator, dtype, device);
    omega = normal({2, components, 3}, 0.7, generator, dtype, device);
    alpha = normal({2, components}, 0.7, generator, dtype, device);
  }
};

/// A mixture of one head whose components are narrow, in between or wide beside their distances, and points
/// near their means: more than a block of rows, and a number of components that fills no vectors.
struct NarrowAndWide {
  static constexpr int64_t rows = 131, components = 37, dim = 5;
  Tensor x, mean, variance, log_prior;

  NarrowAndWide() {
    Generator generator(6);
    const auto draw = [&](const Shape& shape) { return normal(shape, 1, generator, DType::float32); };
    x = draw({rows, dim});
    mean = draw({components, dim});
    variance = draw({components, dim});
    log_prior = draw({components});
    constexpr float sizes[] = {1e-4f, 1e-2f, 0.5f};
    for (int64_t k = 0; k < components; ++k) {
      for (int64_t m = 0; m < dim; ++m) {
        float& value = variance.data<float>()[k * dim + m];
        value = sizes[k % 3] * std::exp(0.3f * value);
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t k = i % components;
      for (int64_t m = 0; m < dim; ++m) {
        float& value = x.data<float>()[i * dim + m];
        value = mean.data<float>()[k * dim + m] + std::sqrt(variance.data<float>()[k * dim + m]) * value;
      }
    }
  }

  std::vector<Variable> leaves(Device device, DType dtype) const {
    std::vector<Variable> all;
    for (const Tensor& tensor : {x, mean, variance, log_prior}) {
      all.emplace_back(tensor.to(dtype).to(device), true);
    }
    return all;
  }

  /// By definition, in double.
  Values responsibilities() const {
    const Values points = x.to_vector(), means = mean.to_vector(), variances = variance.to_vector();
    Values gamma = log_prior.to_vector();
    for (int64_t i = 1; i < rows; ++i) gamma.insert(gamma.end(), gamma.begin(), gamma.begin() + components);
    for (int64_t i = 0; i < rows; ++i) {
      double* const row = &gamma[i * components];
      for (int64_t k = 0; k < components; ++k) {
        for (int64_t m = 0; m < dim; ++m) {
          const double distance = points[i * dim + m] - means[k * dim + m], var = variances[k * dim + m];
          row[k] -= (std::log(2 * std::numbers::pi * var) + distance * distance / var) / 2;
        }
      }
      const double peak = *std::max_element(row, row + components);
      double sum = 0;
      for (int64_t k = 0; k < components; ++k) sum += row[k] = std::exp(row[k] - peak);
      for (int64_t k = 0; k < components; ++k) row[k] /= sum;
    }
    return gamma;
  }

  /// From the gradients of the log densities to those of x, mean and variance, by definition.
  std::vector<Values> gradients(const Values& ds) const {
    const Values points = x.to_vector(), means = mean.to_vector(), variances = variance.to_vector();
    Values dx(points.size()), dmean(means.size()), dvariance(means.size());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t k = 0; k < components; ++k) {
        for (int64_t m = 0; m < dim; ++m) {
          const double distance = points[i * dim + m] - means[k * dim + m], var = variances[k * dim + m];
          const double slope = ds[i * components + k] * distance / var;
          dx[i * dim + m] -= slope;
          dmean[k * dim + m] += slope;
          dvariance[k * dim + m] += (slope * distance - ds[i * components + k]) / (2 * var);
        }
      }
    }
    return {dx, dmean, dvariance};
  }
};

}  // namespace

TEST_CASE("tensor/gmm: log densities by hand") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable x = leaf({1.5, 0}, {1, 2}, device, dtype);
    const Variable mean = leaf({0.5, 0, 1.5, 2}, {2, 2}, device, dtype);
    const Variable variance = leaf({4, 1, 1, 0.25}, {2, 2}, device, dtype);
    const Variable score = gmm_log_density(x, mean, variance);
    const double log_2pi = std::log(2 * std::numbers::pi);
    const Values right = {-log_2pi - 0.5 * (std::log(4.0) + 0.25), -log_2pi - 0.5 * (std::log(0.25) + 16)};
    // Float errs by 5e-7, a term left out by 0.1 and more.
    CHECK(largest_difference(score.value().to_vector(), right) <= 2e-6);

    backward({score}, {Tensor::full({1, 2}, 1, dtype, device)});
    // dx = -(x - mean) / variance, dmean its negative, dvariance = ((x - mean)^2 / variance - 1) / (2
    // variance)
    CHECK(largest_difference(x.grad().to_vector(), {-0.25, 8}) <= 2e-6);
    CHECK(largest_difference(mean.grad().to_vector(), {0.25, 0, 0, -8}) <= 2e-6);
    CHECK(largest_difference(variance.grad().to_vector(), {-0.75 / 8, -0.5, -0.5, 30}) <= 1e-5);
  });
}

TEST_CASE("tensor/gmm: one component is certain") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Inputs in(1, device, dtype);
    const Posterior posterior(in.x, in.mean, in.omega, in.alpha);
    for (const double gamma : posterior.gamma.value().to_vector()) CHECK(gamma == 1);
    for (const double slope : posterior.mean.grad().to_vector()) CHECK(slope == 0);
  });
}

TEST_CASE("tensor/gmm: points far from every centre still have responsibilities and finite gradients") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const int64_t components : {1, 2, 8}) {
      Inputs in(components, device, dtype);
      in.x.fill(1e4);
      Posterior(in.x, in.mean, in.omega, in.alpha).check_sound();
    }
  });
}

TEST_CASE("tensor/gmm: identical points and points on a centre whose variance is at its floor") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const int64_t components : {1, 2, 8}) {
      Inputs in(components, device, dtype);
      in.x.fill(0.25);
      Posterior(in.x, in.mean, in.omega, in.alpha).check_sound();
      in.mean.fill(0.25);
      in.omega.fill(-40);
      Posterior(in.x, in.mean, in.omega, in.alpha).check_sound();
    }
  });
}

TEST_CASE("tensor/gmm: variances stay between the floor and infinity") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const double omega : {-1e4, 1e4}) {
      Inputs in(8, device, dtype);
      in.omega.fill(omega);
      Posterior(in.x, in.mean, in.omega, in.alpha).check_sound();
    }
  });
}

TEST_CASE("tensor/gmm: a component of prior zero is no component") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    Inputs in(3, device, dtype);
    // The last one has no prior and no width: 0 * inf lies near.
    for (int64_t head = 0; head < 2; ++head) {
      in.alpha.narrow(0, head, 1).narrow(1, 2, 1).fill(-infinity);
      in.omega.narrow(0, head, 1).narrow(1, 2, 1).fill(-1e4);
    }
    const Posterior all(in.x, in.mean, in.omega, in.alpha);
    all.check_sound();
    const Posterior others(in.x, in.mean.narrow(1, 0, 2).contiguous(), in.omega.narrow(1, 0, 2).contiguous(),
                           in.alpha.narrow(1, 0, 2).contiguous());
    const Tensor gamma = all.gamma.value();
    CHECK(largest_difference(gamma.narrow(2, 0, 2).to_vector(), others.gamma.value().to_vector()) <= 1e-6);
    for (const double none : gamma.narrow(2, 2, 1).to_vector()) CHECK(none == 0);
    CHECK(all.alpha.grad().to_vector()[2] == 0);
    for (const double none : all.mean.grad().narrow(1, 2, 1).to_vector()) CHECK(none == 0);
  });
}

TEST_CASE("tensor/gmm: float squares do not cancel far from the origin") {
  Inputs in(8, {}, DType::float64);
  for (Tensor* tensor : {&in.x, &in.mean}) {
    auto* values = tensor->data<double>();
    for (int64_t i = 0; i < tensor->elements(); ++i) values[i] = std::round(values[i] * 64) / 64 + 4096;
  }
  in.omega.fill(-2);
  const Posterior right(in.x, in.mean, in.omega, in.alpha);
  const Posterior narrow(in.x.to(DType::float32), in.mean.to(DType::float32), in.omega.to(DType::float32),
                         in.alpha.to(DType::float32));
  // 4e-7; expanded squares lose 4096^2 2^-24 / variance = 8 from the scores and err by nearly 1.
  CHECK(largest_difference(narrow.gamma.value().to_vector(), right.gamma.value().to_vector()) <= 2e-5);
}

TEST_CASE("tensor/gmm: narrow and wide components are what their definition says") {
  const NarrowAndWide in;
  const Values right = in.responsibilities();
  // Gradients of a point's scores as large as its responsibilities, of either sign.
  Generator generator(7);
  const Tensor gamma = Tensor::from(right, {in.rows, in.components});
  const Tensor sign = normal({in.rows, in.components}, 1, generator, DType::float64);
  const Tensor ds = multiply(Variable(gamma), Variable(sign)).value().to(DType::float32);
  const std::vector<Values> gradients = in.gradients(ds.to_vector());
  for_each_device_and_dtype([&](Device device, DType dtype) {
    const std::vector<Variable> leaves = in.leaves(device, dtype);
    // 3e-7 and 7e-16; second moments of narrow components about the centre err by 5e-3 and 4e-12.
    const double tolerance = dtype == DType::float64 ? 1e-14 : 3e-6;
    const Variable posterior = gmm_posterior(leaves[0], leaves[1], leaves[2], leaves[3]);
    CHECK(largest_difference(posterior.value().to_vector(), right) <= tolerance);
    backward({gmm_log_density(leaves[0], leaves[1], leaves[2])}, {ds.to(dtype).to(device)});
    for (size_t i = 0; i < gradients.size(); ++i) {
      CAPTURE(i);
      const double scale = largest_difference(gradients[i], Values(gradients[i].size()));
      CHECK(largest_difference(leaves[i].grad().to_vector(), gradients[i]) <= tolerance * scale);
    }
  });
}

TEST_CASE("tensor/gmm: no bit of a row depends on the rows beside it") {
  const NarrowAndWide in;
  const std::vector<Variable> leaves = in.leaves({}, DType::float32);
  const auto posterior = [&](const Tensor& x) {
    return gmm_posterior(Variable(x), leaves[1], leaves[2], leaves[3]).value().to_vector();
  };
  const Values whole = posterior(in.x);
  for (const int64_t first : {0, 3, 60, 127}) {
    const Values alone = posterior(in.x.narrow(0, first, 4).clone());
    CHECK(std::equal(alone.begin(), alone.end(), whole.begin() + first * in.components));
  }
  Tensor poisoned = in.x.clone();
  poisoned.narrow(0, 1, 1).fill(std::numeric_limits<double>::quiet_NaN());
  poisoned.narrow(0, 2, 1).fill(1e30);
  const Values beside = posterior(poisoned);
  CHECK(std::equal(beside.begin() + 3 * in.components, beside.end(), whole.begin() + 3 * in.components));
}

TEST_CASE("tensor/gmm: learning a constant ends at the floor and not in NaN") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    if (is_simulated(device)) return;
    const Inputs in(2, device, dtype);
    Variable x(Tensor::full({4, 2, 3}, 0.5, dtype, device));
    Variable mean(in.mean.clone(), true);
    Variable omega(in.omega.clone(), true);
    for (int step = 0; step < 2000; ++step) {
      const Variable variance = add_scalar(softplus(omega), floor_variance);
      backward(scale(sum(gmm_log_density(x, mean, variance)), -1));
      for (Variable* parameter : {&mean, &omega}) {
        // Steps of bounded size, as an optimiser's are: the density of a point is unbounded, its gradient
        // too.
        const Values slope = parameter->grad().to_vector();
        Values value = parameter->value().to_vector();
        for (size_t i = 0; i < value.size(); ++i) value[i] -= 0.02 * std::tanh(slope[i]);
        parameter->value() = Tensor::from(value, parameter->shape(), device).to(dtype);
        parameter->zero_grad();
      }
    }
    CHECK(all_finite(mean.value().to_vector()));
    double smallest = infinity;
    for (const double variance : add_scalar(softplus(omega), floor_variance).value().to_vector()) {
      CHECK(std::isfinite(variance));
      smallest = std::min(smallest, variance);
    }
    CHECK(smallest >= floor_variance);
    CHECK(smallest <= 1.1 * floor_variance);  // it did collapse: the start is 0.2 and more
  });
}

TEST_CASE("tensor/gmm: the number of threads changes no bit") {
  check_same_with_any_threads([] {
    Generator generator(3);
    const Tensor x = normal({1000, 2, 3}, 1, generator, DType::float32);
    const Inputs in(8, {}, DType::float32);
    const Posterior posterior(x, in.mean, in.omega, in.alpha);
    Values all = posterior.gamma.value().to_vector();
    for (const Variable& input : {posterior.x, posterior.mean, posterior.omega, posterior.alpha}) {
      const Values gradient = input.grad().to_vector();
      all.insert(all.end(), gradient.begin(), gradient.end());
    }
    return all;
  });
}

TEST_CASE("tensor/gmm: parameters prepared beforehand give the same bits") {
  const NoGrad no_grad;
  const NarrowAndWide in;
  for_each_device_and_dtype([&](Device device, DType dtype) {
    const std::vector<Variable> v = in.leaves(device, dtype);
    const GmmParameters mixture{.variance = v[2], .log_prior = v[3]};
    const GmmParameters prepared = gmm_prepared(v[1], mixture);
    CHECK(prepared.prepared.defined() == (device.kind == Device::Kind::cpu));
    const auto gamma = [&](const Variable& x, const GmmParameters& parameters) {
      return gmm_posterior(x, v[1], parameters).value().to_vector();
    };
    CHECK(gamma(v[0], prepared) == gamma(v[0], mixture));
    const Variable token(v[0].value().narrow(0, 0, 1));  // row 0 is at a narrow component
    CHECK(gamma(token, prepared) == gamma(token, mixture));
  });
}

TEST_CASE("tensor/gmm: no rows give zero gradients") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Inputs in(3, device, dtype);
    const Posterior posterior(Tensor::empty({0, 2, 3}, dtype, device), in.mean, in.omega, in.alpha);
    CHECK(posterior.gamma.shape() == Shape{0, 2, 3});
    for (const double slope : posterior.mean.grad().to_vector()) CHECK(slope == 0);
  });
}

TEST_CASE("tensor/gmm: shapes that do not go together are named") {
  const Inputs in(3, {}, DType::float32);
  const Variable x(in.x), mean(in.mean), omega(in.omega), alpha(in.alpha);
  CHECK(error_of([&] { gmm_log_density(x, mean, alpha); }) ==
        "[gmm_log_density] variance (2, 3) for mean (2, 3, 3): their shapes must agree");
  CHECK(error_of([&] {
          gmm_posterior(Variable(Tensor::zeros({4, 3, 3}, DType::float32)), mean, omega, alpha);
        }) == "[gmm_posterior] x (4, 3, 3) for mean (2, 3, 3): x must be [..., H, dr]");
  CHECK(error_of([&] { gmm_responsibilities(x, mean, omega, alpha, 0); }) ==
        "[gmm_parameters] variance floor 0; allowed: above 0");
}

}  // namespace mixgrad
