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
