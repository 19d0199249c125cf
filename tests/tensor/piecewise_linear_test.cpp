// Linear maps that change along a sequence: each piece is a linear map of its own.
#include "autograd/ops/piecewise_linear.h"

#include "autograd/ops/linear.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {

TEST_CASE("tensor/piecewise_linear: every sequence and piece has its own weight") {
  for_each_device_and_dtype([](Device device, DType dtype) {
    for (const int64_t length : {0, 1, 5, 6, 7}) {
      CAPTURE(length);
      const int64_t batch = 2, piece = 3, pieces = (length + 2) / 3, in = 5, out = 4;
      const Variable x = leaf(waves(batch * length * in), {batch, length, in}, device, dtype);
      const Variable weight = leaf(waves(batch * pieces * out * in), {batch, pieces, out, in}, device, dtype);
      const Tensor dy = leaf(waves(batch * length * out), {batch, length, out}, device, dtype).value();
      const Variable y = piecewise_linear(x, weight, piece);
      backward({y}, {dy});
      for (int64_t b = 0; b < batch; ++b) {
        for (int64_t p = 0; p < pieces; ++p) {
          const int64_t begin = p * piece, count = std::min(piece, length - begin);
          const auto part = [&](const Tensor& t) {
            return t.narrow(0, b, 1).narrow(1, begin, count).contiguous().reshape({count, t.shape()[2]});
          };
          const auto matrix = [&](const Tensor& t) {
            return t.narrow(0, b, 1).narrow(1, p, 1).contiguous().reshape({out, in});
          };
          const Variable x_part(part(x.value()), true), w(matrix(weight.value()), true);
          const Variable expected = linear(x_part, w);
          backward({expected}, {part(dy)});
          // Sums in another order: 1e-7 in float; with a neighbour's weight they differ by 0.1 and more.
          const auto check_same = [](const Tensor& got, const Tensor& want) {
            const std::vector<double> a = got.to_vector(), b = want.to_vector();
            for (size_t i = 0; i < b.size(); ++i) CHECK(std::abs(a[i] - b[i]) < 1e-5);
          };
          check_same(part(y.value()), expected.value());
          check_same(part(x.grad()), x_part.grad());
          check_same(matrix(weight.grad()), w.grad());
        }
      }
    }
  });
}

TEST_CASE("tensor/piecewise_linear: shapes that do not go together are refused") {
  const auto message = [](const Shape& x, const Shape& weight, int64_t piece) {
    return error_of([&] {
      piecewise_linear(Variable(Tensor::zeros(x, DType::float32)),
                       Variable(Tensor::zeros(weight, DType::float32)), piece);
    });
  };
  CHECK(message({2, 7, 3}, {2, 3, 4, 3}, 3).empty());
  CHECK(message({2, 7, 3}, {2, 2, 4, 3}, 3) ==
        "[piecewise_linear] x (2, 7, 3) and weight (2, 2, 4, 3) in pieces of 3 tokens: x must be [B, T, in] "
        "and "
        "weight [B, pieces of T, out, in]");
  CHECK(message({2, 7, 3}, {2, 3, 4, 3}, 0) == "[piecewise_linear] pieces of 0 tokens; allowed: 1 or more");
}

}  // namespace mixgrad
