// The vectorised functions against the library's in double, over all exponents of float; and what the
// functions of scalar.h make of arguments that are tiny, huge or not finite.
#include "tensor/kernels/vector_math.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tensor/kernels/scalar.h"
#include "tensor/parallel.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float greatest = std::numeric_limits<float>::max();

/// |got - right| in units in the last place of right as a float; 0 where both round to the same infinity.
double ulps(float got, double right) {
  if (got == static_cast<float>(right)) return 0;
  constexpr int least_exponent = -126;  // of normal floats: below, units no longer shrink
  const int exponent = right == 0 ? least_exponent : std::max(std::ilogb(right), least_exponent);
  return std::abs(got - right) / std::ldexp(1.0, exponent - 23);
}

/// The largest error of f beside right over the floats in [low, high], of which every 1021st is tried.
template <class F, class Right>
double worst_ulps(float low, float high, const F& f, const Right& right) {
  double worst = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 1021) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!(x >= low && x <= high)) continue;
    worst = worse(worst, ulps(f(x), right(static_cast<double>(x))));
  }
  return worst;
}

}  // namespace

// The numbers in the comments are of all floats, not only of those tried here, with fused multiply-adds and
// without.

TEST_CASE("tensor/vector_math: exp is right in the last place") {
  const auto f = [](float x) { return vector_exp(x); };
  // 0.8 and 1.2; a term less in the series 2.7.
  CHECK(worst_ulps(-infinity, infinity, f, [](double x) { return std::exp(x); }) <= 1.3);
  CHECK(vector_exp(0.0f) == 1);
  CHECK(vector_exp(-infinity) == 0);
  CHECK(vector_exp(-greatest) == 0);
  CHECK(vector_exp(infinity) == infinity);
  CHECK(vector_exp(greatest) == infinity);
}

TEST_CASE("tensor/vector_math: log1p is right in the last place") {
  const auto f = [](float x) { return vector_log1p(x); };
  // 0.9 and 1.4; a term less in the series 2.6; as log of 1 + x, 8e6 for tiny x.
  CHECK(worst_ulps(0, 1, f, [](double x) { return std::log1p(x); }) <= 1.5);
}

TEST_CASE("tensor/vector_math: log is right in the last place") {
  const auto f = [](float x) { return vector_log(x); };
  // 1.0; a term less in the series 1.8; denormal numbers taken for normal ones, 1e7.
  CHECK(worst_ulps(0, infinity, f, [](double x) { return std::log(x); }) <= 1.1);
  CHECK(vector_log(1.0f) == 0);
  CHECK(vector_log(0.0f) == -infinity);
  CHECK(vector_log(infinity) == infinity);
  CHECK(std::isnan(vector_log(-1.0f)));
}

TEST_CASE("tensor/vector_math: tanh is right in the last places") {
  const auto f = [](float x) { return vector_tanh(x); };
  // 2.6; as 2 sigmoid(2 x) - 1, which cancels, 3e7.
  CHECK(worst_ulps(-infinity, infinity, f, [](double x) { return std::tanh(x); }) <= 2.7);
}

TEST_CASE("tensor/vector_math: the normal distribution and its density are right in the last places") {
  const auto density = [](float x) { return gaussian(x); };
  // 1.0 and 1.4; with x^2 rounded to float 60.
  CHECK(worst_ulps(-infinity, infinity, density, [](double x) { return std::exp(-0.5 * x * x); }) <= 1.5);
  const auto f = [](float x) { return normal_cdf(x); };
  const auto right = [](double x) { return 0.5 * std::erfc(-std::sqrt(0.5) * x); };
  // 5 and 7.1; as 1 - P(X > x) in the left tail, 2e7.
  CHECK(worst_ulps(-infinity, infinity, f, right) <= 7.5);
  CHECK(normal_cdf(0.0f) == 0.5);
}

TEST_CASE("tensor/vector_math: sigmoid and softplus keep the digits of small values") {
  const auto s = [](float x) { return sigmoid(x); };
  // 2.4; as 1 - 1 / (1 + exp(x)) for negative x, 3e7.
  CHECK(worst_ulps(-infinity, infinity, s, [](double x) {
          return std::exp(std::min(x, 0.0)) / (1 + std::exp(-std::abs(x)));
        }) <= 2.5);
  const auto p = [](float x) { return softplus(x); };
  // 1.7; as log(1 + exp(x)), inf above 88 and 8e6 for x below -17.
  CHECK(worst_ulps(-infinity, infinity, p,
                   [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }) <= 2);
}

TEST_CASE("tensor/vector_math: in a parallel loop subnormal numbers are 0 and nothing else changes") {
  // The least normal number counts as 0 too: a result may be it or 0 there, as rounding goes.
  const auto without_subnormal = [](float x) {
    return std::abs(x) <= std::numeric_limits<float>::min() ? 0.0f : x;
  };
  float (*const functions[])(float) = {
      [](float x) { return vector_exp(x); }, [](float x) { return vector_tanh(x); },
      [](float x) { return gaussian(x); },   [](float x) { return normal_cdf(x); },
      [](float x) { return sigmoid(x); },    [](float x) { return softplus(x); }};
  for (const auto& f : functions) {
    int64_t different = 0;
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 1021) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
      if (std::isnan(x)) continue;
      float inside = 0;
      parallel_tasks(1, [&](int64_t) { inside = f(x); });
      different += std::fpclassify(inside) == FP_SUBNORMAL;
      different += without_subnormal(inside) != without_subnormal(f(without_subnormal(x)));
    }
    CHECK(different == 0);
  }
}

TEST_CASE("tensor/vector_math: both sigmoids keep the digits of small values") {
  const auto right = [](double x) { return std::exp(std::min(x, 0.0)) / (1 + std::exp(-std::abs(x))); };
  // 2.6 and 2.8; what is left of 1 as 1 - sigmoid(x), 3e7.
  const auto value = [](float x) { return sigmoids(x).value; };
  const auto rest = [](float x) { return sigmoids(-x).rest; };
  CHECK(worst_ulps(-infinity, infinity, value, right) <= 3);
  CHECK(worst_ulps(-infinity, infinity, rest, right) <= 3);
}

TEST_CASE("tensor/vector_math: NaN gives NaN") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float value :
       {vector_exp(nan), vector_log1p(nan), vector_log(nan), vector_tanh(nan), gaussian(nan), normal_cdf(nan),
        sigmoid(nan), sigmoids(nan).value, sigmoids(nan).rest, softplus(nan), GeluErf::value(nan),
        GeluTanh::value(nan), GeluTanh::slope(nan), EluPlusOne::value(nan)})
    CHECK(std::isnan(value));
}

TEST_CASE("tensor/vector_math: huge arguments of the activations are at their limits") {
  for (const float x : {25.0f, 1e4f, 1e13f, 1e30f, greatest}) {
    CAPTURE(x);
    CHECK(Silu::value(std::max(x, 200.0f)) == std::max(x, 200.0f));
    for (const float value : {GeluErf::value(x), GeluTanh::value(x)}) CHECK(value == x);
    for (const float value : {GeluErf::value(-x), GeluTanh::value(-x), Silu::value(-std::max(x, 200.0f))})
      CHECK(value == 0);
    // A product of factors that are 0 and inf there would be NaN.
    for (const float slope : {GeluErf::slope(x), GeluTanh::slope(x), Silu::slope(x)}) CHECK(slope == 1);
    for (const float slope : {GeluErf::slope(-x), GeluTanh::slope(-x)}) CHECK(slope == 0);
  }
  CHECK(GeluTanh::slope(1e300) == 1);
  CHECK(GeluTanh::slope(-1e300) == 0);
}

}  // namespace mixgrad
