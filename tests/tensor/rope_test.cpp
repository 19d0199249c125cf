// Rotary position embedding: angles far away, what rotations keep, views, messages, repeatability.
#include "autograd/ops/rope.h"

#include <cmath>
#include <numeric>

#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

using Values = std::vector<double>;

double dot(const Values& a, const Values& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

TEST_CASE("tensor/rope: the angle of a far position has all its digits") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    // Pair 0 turns by the position, pair 1 by a hundredth of it.
    const Variable x = leaf({1, 2, 0, 0}, {1, 1, 1, 4}, device, dtype);
    const Values y = rope(x, 1000001).value().to_vector();
    const Values want = {std::cos(1000001.0), 2 * std::cos(10000.01), std::sin(1000001.0),
                         2 * std::sin(10000.01)};
    // A float's rounding: 1e-7; an angle computed in float: 3e-2.
    for (int j = 0; j < 4; ++j) CHECK(std::abs(y[j] - want[j]) < 3e-7);
  });
}

TEST_CASE("tensor/rope: products depend on the distance of positions alone") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const int64_t size = 10;
    const Variable q = leaf(waves(size), {1, 1, 1, size}, device, dtype);
    const Variable k = leaf(waves(2 * size), {1, 2, 1, size}, device, dtype);
    const Variable k_last(k.value().narrow(1, 1, 1).clone());
    const double near = dot(rope(q, 5).value().to_vector(), rope(k_last, 2).value().to_vector());
    const double far = dot(rope(q, 70005).value().to_vector(), rope(k_last, 70002).value().to_vector());
    CHECK(near == doctest::Approx(far).epsilon(1e-6));
    CHECK(std::abs(near - dot(q.value().to_vector(), k_last.value().to_vector())) > 0.1);
  });
}

TEST_CASE("tensor/rope: backward turns back what forward turned") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Values values = waves(2 * 7 * 3 * 6);
    const Variable x = leaf(values, {2, 7, 3, 6}, device, dtype);
    const Variable y = rope(x, 11);
    backward({y}, {y.value()});
    const Values back = x.grad().to_vector();
    for (size_t i = 0; i < values.size(); ++i) CHECK(std::abs(back[i] - values[i]) < 1e-6);
  });
}

TEST_CASE("tensor/rope: an offset continues where positions from 0 left off") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable x = leaf(waves(9 * 2 * 4), {1, 9, 2, 4}, device, dtype);
    const Tensor whole = rope(x).value();
    const Tensor last = rope(Variable(x.value().narrow(1, 6, 3).clone()), 6).value();
    CHECK(last.to_vector() == whole.narrow(1, 6, 3).to_vector());
    const Tensor positions = Tensor::from(std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}, {9}, device);
    CHECK(rope(x, positions).value().to_vector() == whole.to_vector());
  });
}

TEST_CASE("tensor/rope: part of a fused projection is taken as it lies") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable fused = leaf(waves(2 * 5 * 6 * 4), {2, 5, 6, 4}, device, dtype);
    const Tensor part = fused.value().narrow(2, 2, 3);
    REQUIRE(!part.is_contiguous());
    CHECK(rope(Variable(part)).value().to_vector() == rope(Variable(part.clone())).value().to_vector());
  });
}

TEST_CASE("tensor/rope: tokens and batch entries may be none") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const Shape& shape : {Shape{0, 3, 2, 4}, Shape{2, 0, 2, 4}, Shape{2, 3, 0, 4}, Shape{2, 3, 2, 0}}) {
      CAPTURE(shape);
      const Variable x(Tensor::zeros(shape, dtype, device), true);
      const Variable y = rope(x);
      CHECK(y.shape() == shape);
      backward({y}, {y.value()});
      CHECK(x.grad().shape() == shape);
    }
  });
}

TEST_CASE("tensor/rope: what can not be rotated is named") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable odd(Tensor::zeros({1, 2, 1, 5}, dtype, device));
    CHECK(error_of([&] { rope(odd); }) == "[rope] head size 5 is odd; it must be even");
    CHECK_THROWS_AS(rope(odd), UsageError);
    const Variable x(Tensor::zeros({1, 2, 1, 4}, dtype, device));
    CHECK(error_of([&] { rope(x, 0, -1); }) == "[rope] theta -1; allowed: theta > 0");
    CHECK(error_of([&] { rope(x, Tensor::zeros({3}, DType::int64, device)); }) ==
          "[rope] positions (3) for x (1, 2, 1, 4); they must be [T]");
    CHECK(error_of([&] {
            rope(Variable(Tensor::zeros({2, 4}, dtype, device)));
          }) == "[rope] x (2, 4); it must be [B, T, H, d]");
  });
}

TEST_CASE("tensor/rope: the number of threads changes no bit") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Values values = waves(3 * 70 * 5 * 34);
    check_same_with_any_threads([&] {
      const Variable x = leaf(values, {3, 70, 5, 34}, device, dtype);
      const Variable y = rope(x, 3);
      backward({y}, {x.value()});
      Values all = y.value().to_vector();
      const Values gradient = x.grad().to_vector();
      all.insert(all.end(), gradient.begin(), gradient.end());
      return all;
    });
  });
}

}  // namespace mixgrad
