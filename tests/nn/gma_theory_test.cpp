// The theory of Gaussian Mixture Attention, on the op: nn/mixers/gma/gma.md says why each of these holds.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops/gma.h"
#include "autograd/ops/gmm.h"
#include "autograd/tape.h"

namespace mixgrad {
namespace {

constexpr int64_t length = 40, heads = 2, components = 6, routing = 3, value_size = 4;

/// A mixture and a sequence, float64, batch of one.
struct Setting {
  Variable q, k, v, mean, omega, alpha;

  explicit Setting(uint64_t seed) {
    Generator generator(seed);
    const auto draw = [&](const Shape& shape) {
      return Variable(normal(shape, 1, generator, DType::float64));
    };
    q = draw({1, length, heads, routing});
    k = draw({1, length, heads, routing});
    v = draw({1, length, heads, value_size});
    mean = draw({heads, components, routing});
    omega = draw({heads, components, routing});
    alpha = draw({heads, components});
  }

  std::vector<double> output(const GmaOptions& options) const {
    return gma(q, k, v, mean, omega, alpha, options).output.value().to_vector();
  }
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// The rank of a square matrix: pivots of Gaussian elimination with full pivoting that are above 1e-9 of the
/// first.
int rank_of(std::vector<double> a, int64_t n) {
  int rank = 0;
  double first = 0;
  for (int64_t step = 0; step < n; ++step) {
    int64_t row = step, column = step;
    for (int64_t i = step; i < n; ++i) {
      for (int64_t j = step; j < n; ++j) {
        if (std::abs(a[i * n + j]) > std::abs(a[row * n + column])) row = i, column = j;
      }
    }
    const double pivot = std::abs(a[row * n + column]);
    if (step == 0) first = pivot;
    if (pivot <= 1e-9 * first) break;
    ++rank;
    for (int64_t j = 0; j < n; ++j) std::swap(a[step * n + j], a[row * n + j]);
    for (int64_t i = 0; i < n; ++i) std::swap(a[i * n + step], a[i * n + column]);
    for (int64_t i = step + 1; i < n; ++i) {
      const double factor = a[i * n + step] / a[step * n + step];
      for (int64_t j = step; j < n; ++j) a[i * n + j] -= factor * a[step * n + j];
    }
  }
  return rank;
}

/// Rows of x [rows, columns] in the order given.
Variable permuted_components(const Variable& parameter, const std::vector<int64_t>& order) {
  const int64_t rest = parameter.shape().rank() == 3 ? parameter.shape()[2] : 1;
  const std::vector<double> values = parameter.value().to_vector();
  std::vector<double> moved(values.size());
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < components; ++i) {
      std::copy_n(values.begin() + (h * components + order[i]) * rest, rest,
                  moved.begin() + (h * components + i) * rest);
    }
  }
  return Variable(Tensor::from(moved, parameter.shape()));
}

}  // namespace

TEST_CASE("gma theory: outputs lie in the hull of the values seen") {
  const Setting s(1);
  const std::vector<double> values = s.v.value().to_vector();
  const std::vector<double> outputs = s.output({.eps = 0});
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t e = 0; e < value_size; ++e) {
      double lowest = INFINITY, highest = -INFINITY;
      for (int64_t t = 0; t < length; ++t) {
        const int64_t i = (t * heads + h) * value_size + e;
        lowest = std::min(lowest, values[i]);
        highest = std::max(highest, values[i]);
        CHECK(outputs[i] >= lowest - 1e-12);
        CHECK(outputs[i] <= highest + 1e-12);
      }
    }
  }
}

TEST_CASE("gma theory: the attention that it stands for has rows that sum to one and rank at most K") {
  Setting s(2);
  // Values that are unit vectors make the output the attention matrix itself.
  std::vector<double> identity(length * heads * length, 0.0);
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t h = 0; h < heads; ++h) identity[(t * heads + h) * length + t] = 1;
  }
  s.v = Variable(Tensor::from(identity, {1, length, heads, length}));
  const std::vector<double> both = s.output({.causal = false, .eps = 0});
  for (int64_t h = 0; h < heads; ++h) {
    std::vector<double> attention;
    for (int64_t t = 0; t < length; ++t) {
      const auto row = both.begin() + (t * heads + h) * length;
      attention.insert(attention.end(), row, row + length);
      double sum = 0;
      for (int64_t j = 0; j < length; ++j) {
        CHECK(row[j] >= 0);
        sum += row[j];
      }
      CHECK(std::abs(sum - 1) < 1e-12);
    }
    CHECK(rank_of(attention, length) == components);
  }
}

TEST_CASE("gma theory: the order of the components does not matter") {
  const Setting s(3);
  Setting moved(3);
  const std::vector<int64_t> order = {4, 2, 0, 5, 1, 3};
  moved.mean = permuted_components(s.mean, order);
  moved.omega = permuted_components(s.omega, order);
  moved.alpha = permuted_components(s.alpha, order);
  CHECK(largest_difference(s.output({}), moved.output({})) < 1e-13);
}

TEST_CASE("gma theory: one component gives the running mean of the values") {
  Setting s(4);
  Generator generator(5);
  s.mean = Variable(normal({heads, 1, routing}, 1, generator, DType::float64));
  s.omega = Variable(Tensor::zeros({heads, 1, routing}, DType::float64));
  s.alpha = Variable(Tensor::zeros({heads, 1}, DType::float64));
  const std::vector<double> values = s.v.value().to_vector();
  std::vector<double> mean(values.size());
  for (int64_t i = 0; i < heads * value_size; ++i) {
    double sum = 0;
    for (int64_t t = 0; t < length; ++t) {
      sum += values[t * heads * value_size + i];
      mean[t * heads * value_size + i] = sum / static_cast<double>(t + 1);
    }
  }
  CHECK(largest_difference(s.output({.eps = 0}), mean) < 1e-13);
}

TEST_CASE("gma theory: responsibilities are Lipschitz with the constant (R + M) over the smallest variance") {
  // For |x| <= R, |mean| <= M and variances of at least s, the Jacobian of x -> gamma has norm at most
  // 1/2 max over k, l of |grad score_k - grad score_l| <= (R + M) / s.
  const Setting s(6);
  const double floor = 0.3;
  const auto norm = [](const double* x) { return std::hypot(x[0], x[1], x[2]); };
  const auto largest_norm = [&](const Variable& x) {
    const std::vector<double> values = x.value().to_vector();
    double largest = 0;
    for (size_t i = 0; i < values.size(); i += routing) largest = std::max(largest, norm(&values[i]));
    return largest;
  };
  const double radius = std::max(largest_norm(s.q), largest_norm(s.k));
  const double constant = (radius + largest_norm(s.mean)) / floor;
  const std::vector<double> x = s.q.value().to_vector(), y = s.k.value().to_vector();
  const std::vector<double> at_x =
      gmm_responsibilities(s.q, s.mean, s.omega, s.alpha, floor).value().to_vector();
  const std::vector<double> at_y =
      gmm_responsibilities(s.k, s.mean, s.omega, s.alpha, floor).value().to_vector();
  double steepest = 0;
  for (int64_t row = 0; row < length * heads; ++row) {
    double moved = 0;
    for (int64_t k = 0; k < components; ++k) {
      const double difference = at_x[row * components + k] - at_y[row * components + k];
      moved += difference * difference;
    }
    const double step[3] = {x[row * 3] - y[row * 3], x[row * 3 + 1] - y[row * 3 + 1],
                            x[row * 3 + 2] - y[row * 3 + 2]};
    steepest = std::max(steepest, std::sqrt(moved) / norm(step));
  }
  MESSAGE("steepest slope " << steepest << ", Lipschitz constant " << constant);
  CHECK(steepest > 0);
  CHECK(steepest <= constant);
}

TEST_CASE("gma theory: gradients of the scores sum to zero over the components") {
  // A common shift of all scores changes nothing, so dalpha, the sum of the scores' gradients, sums to zero.
  Setting s(7);
  s.alpha = Variable(s.alpha.value(), true);
  const Variable o = gma(s.q, s.k, s.v, s.mean, s.omega, s.alpha, {}).output;
  Generator generator(8);
  backward({o}, {normal(o.shape(), 1, generator, DType::float64)});
  const std::vector<double> dalpha = s.alpha.grad().to_vector();
  for (int64_t h = 0; h < heads; ++h) {
    double sum = 0, largest = 0;
    for (int64_t k = 0; k < components; ++k) {
      sum += dalpha[h * components + k];
      largest = std::max(largest, std::abs(dalpha[h * components + k]));
    }
    CHECK(largest > 1e-3);
    CHECK(std::abs(sum) < 1e-12);
  }
}

}  // namespace mixgrad
