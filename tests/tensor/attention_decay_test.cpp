// Attention whose keys lose weight with every token, against its definition.
#include <cmath>

#include "autograd/ops/attention.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {

namespace {

using Values = std::vector<double>;

constexpr int64_t length = 70, heads = 2, key_dim = 3, value_dim = 2;

Values draw(int64_t count, uint64_t seed) {
  Generator generator(seed);
  return normal({count}, 1, generator, DType::float64).to_vector();
}

/// What query t of a head gets: numbers as the definition reads them, one after the other.
std::vector<double> defined_output(const Values& q, const Values& k, const Values& v, const Values& g,
                                   int64_t t, int64_t head, int64_t oldest) {
  const auto at = [&](const Values& x, int64_t token, int64_t width) {
    return &x[(token * heads + head) * width];
  };
  std::vector<double> weights;
  double total = 0;
  for (int64_t j = oldest; j <= t; ++j) {
    double score = 0;
    for (int64_t c = 0; c < key_dim; ++c) score += at(q, t, key_dim)[c] * at(k, j, key_dim)[c];
    score /= std::sqrt(double(key_dim));
    for (int64_t i = j + 1; i <= t; ++i) score += g[i * heads + head];
    weights.push_back(std::exp(score));
    total += weights.back();
  }
  std::vector<double> o(value_dim, 0);
  for (int64_t j = oldest; j <= t; ++j) {
    for (int64_t c = 0; c < value_dim; ++c) o[c] += weights[j - oldest] / total * at(v, j, value_dim)[c];
  }
  return o;
}

}  // namespace

TEST_CASE("tensor/attention: log decays and documents as they are defined") {
  const Values q = draw(length * heads * key_dim, 1), k = draw(length * heads * key_dim, 2);
  const Values v = draw(length * heads * value_dim, 3);
  Values g = draw(length * heads, 4);
  for (double& value : g) value = -std::abs(value);
  std::vector<int32_t> begins(length, 0);
  begins[5] = begins[66] = 1;
  for_each_device_and_dtype([&](Device device, DType dtype) {
    const auto input = [&](const Values& x, const Shape& shape) {
      return Variable(Tensor::from(x, shape).to(dtype).to(device));
    };
    const Tensor documents = Tensor::from(begins, {1, length}, device);
    const Variable o = attention(input(q, {1, length, heads, key_dim}), input(k, {1, length, heads, key_dim}),
                                 input(v, {1, length, heads, value_dim}),
                                 {.causal = true, .documents = documents}, {}, input(g, {1, length, heads}));
    const Values got = o.value().to_vector();
    for (int64_t t = 0; t < length; ++t) {
      const int64_t oldest = t < 5 ? 0 : t < 66 ? 5 : 66;
      for (int64_t head = 0; head < heads; ++head) {
        const std::vector<double> want = defined_output(q, k, v, g, t, head, oldest);
        for (int64_t c = 0; c < value_dim; ++c) {
          // Rounding alone, 3e-7 and 5e-16; where a token's own decay is left out, 0.1.
          CHECK(std::abs(got[(t * heads + head) * value_dim + c] - want[c]) <
                (dtype == DType::float32 ? 1e-5 : 1e-13));
        }
      }
    }
  });
}

TEST_CASE("tensor/attention: log decays and documents that do not fit are refused") {
  const auto zeros = [](const Shape& shape) { return Variable(Tensor::zeros(shape, DType::float32)); };
  const Variable q = zeros({1, 3, 2, 4});
  CHECK(error_of([&] {
          attention(q, q, q, {.causal = true}, {}, zeros({1, 3, 1}));
        }) == "[attention] log_decay (1, 3, 1); allowed: (1, 3, 2)");
  CHECK(error_of([&] {
          attention(q, q, q, {}, {}, zeros({1, 3, 2}));
        }) == "[attention] log decays without causal; they lie between a key and a later query");
  CHECK(error_of([&] {
          attention(q, q, q, {.documents = Tensor::zeros({1, 3}, DType::int32)});
        }) == "[attention] documents without causal; nothing keeps their tokens apart");
}

}  // namespace mixgrad
