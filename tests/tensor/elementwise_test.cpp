// SwiGLU: values at both ends and messages. The other elementwise ops are compared with the golden vectors.
#include "autograd/ops/elementwise.h"

#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

using Values = std::vector<double>;

}  // namespace

TEST_CASE("tensor/elementwise: swiglu gates the second operand by the first") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable a = leaf({0, 100, -100, -1e30, 1}, {5}, device, dtype);
    const Variable b = leaf({3, -2, 5, 7, 2}, {5}, device, dtype);
    const Variable y = swiglu(a, b);
    backward({y}, {Tensor::full({5}, 1, dtype, device)});
    const Values values = {0, -200, 0, 0, 2 / (1 + std::exp(-1.0))};
    const Values slopes_b = {0, 100, 0, 0, 1 / (1 + std::exp(-1.0))};
    // silu'(1) = s (1 + 1 - s) with s = sigmoid(1)
    const double s = 1 / (1 + std::exp(-1.0));
    const Values slopes_a = {1.5, -2, 0, 0, 2 * s * (2 - s)};
    for (int i = 0; i < 5; ++i) {
      CAPTURE(i);
      // Float errs by 1e-7; with the operands exchanged the last value is 1.76 instead of 1.46.
      CHECK(y.value().to_vector()[i] == doctest::Approx(values[i]).epsilon(1e-6));
      CHECK(a.grad().to_vector()[i] == doctest::Approx(slopes_a[i]).epsilon(1e-6));
      CHECK(b.grad().to_vector()[i] == doctest::Approx(slopes_b[i]).epsilon(1e-6));
    }
  });
}

TEST_CASE("tensor/elementwise: swiglu wants operands of one shape and takes none at all") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    const Variable x(Tensor::zeros({2, 3}, dtype, device));
    const Variable other(Tensor::zeros({3, 2}, dtype, device));
    CHECK(error_of([&] { swiglu(x, other); }) ==
          "[swiglu] a (2, 3) and b (3, 2); they must have the same shape");
    const Variable none(Tensor::zeros({0, 3}, dtype, device), true);
    const Variable y = swiglu(none, none);
    backward({y}, {y.value()});
    CHECK(none.grad().shape() == Shape{0, 3});
  });
}

TEST_CASE("tensor/elementwise: the gradient of what is repeated is summed over all its places") {
  const std::vector<std::pair<Shape, Shape>> cases = {
      {{5}, {300, 5}},          {{300, 1}, {300, 5}},           {{1}, {700}},
      {{3, 1, 4}, {3, 200, 4}}, {{1, 4, 1}, {150, 4, 6}},       {{2, 1, 3, 1}, {2, 130, 3, 2}},
      {{5000}, {3, 5000}},      {{1, 1, 3, 1}, {2, 1, 3, 200}}, {{2, 3}, {2, 3}},
      {{1, 3}, {0, 3}}};
  for_each_device_and_dtype([&](Device device, DType dtype) {
    for (const auto& [narrow, wide] : cases) {
      CAPTURE(narrow);
      CAPTURE(wide);
      const Variable a(Tensor::zeros(narrow, dtype, device), true);
      const Variable b(Tensor::zeros(wide, dtype, device), true);
      Values dy(wide.elements());  // whole numbers, whose sums are exact in any order
      for (size_t i = 0; i < dy.size(); ++i) dy[i] = static_cast<double>(i * i % 17) - 5;
      backward({add(a, b)}, {leaf(dy, wide, device, dtype).value()});
      Values want(narrow.elements());
      for (int64_t i = 0; i < wide.elements(); ++i) {
        int64_t place = 0, stride = 1, rest = i;  // of i in a, from the last axis on
        for (int axis = -1; axis >= -wide.rank(); --axis) {
          const int64_t size = -axis <= narrow.rank() ? narrow[axis] : 1;
          place += rest % wide[axis] % size * stride;
          rest /= wide[axis];
          stride *= size;
        }
        want[place] += dy[i];
      }
      CHECK(a.grad().to_vector() == want);
      CHECK(b.grad().to_vector() == dy);
    }
  });
}

TEST_CASE("tensor/elementwise: the number of threads changes no bit of sums over rows") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    if (is_simulated(device)) return;
    check_same_with_any_threads([&] {
      const Variable a(Tensor::zeros({2, 1, 70}, dtype, device), true);
      const Variable b(Tensor::zeros({2, 500, 70}, dtype, device));
      backward({add(a, b)}, {leaf(waves(70000), {2, 500, 70}, device, dtype).value()});
      return a.grad().to_vector();
    });
  });
}

TEST_CASE("tensor/elementwise: dropout keeps what its generator's words say") {
  for (const int64_t count : {1, 3, 255, 257, 33005}) {
    CAPTURE(count);
    Generator generator(5, Stream::dropout, 0xFFFFFFF0);  // the counter's lower half overflows on the way
    const Generator before = generator;
    const Variable x(Tensor::full({count}, 3, DType::float32));
    const Values y = dropout(x, 0.25, generator).value().to_vector();
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t word = before.block(before.position() + i / 4)[i % 4];
      if (y[i] != (uniform_from_word(word) > 0.25f ? 4 : 0)) ++wrong;
    }
    CHECK(wrong == 0);
    CHECK(generator.position() == before.position() + (count + 3) / 4);
  }
}

}  // namespace mixgrad
