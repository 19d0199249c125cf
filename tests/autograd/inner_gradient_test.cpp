// Memories that learn while they read do what gradient descent does: against updates token by token, whose
// gradients our own autograd takes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops/atlas.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/recurrence.h"
#include "autograd/ops/titans.h"
#include "autograd/tape.h"

namespace mixgrad {
namespace {

/// Random tokens of one sequence and head: [1, T, 1, d].
class Tokens {
 public:
  explicit Tokens(uint64_t seed) : generator_(seed) {}

  Variable vectors(int64_t length, int64_t size, double deviation = 1) {
    return Variable(normal({1, length, 1, size}, deviation, generator_, DType::float64));
  }
  Variable numbers(int64_t length, double low, double high) {
    return Variable(uniform({1, length, 1}, low, high, generator_, DType::float64));
  }
  Tensor matrix(int64_t rows, int64_t columns, double deviation) {
    return normal({rows, columns}, deviation, generator_, DType::float64);
  }

 private:
  Generator generator_;
};

/// Token t, as a row [1, d].
Variable row(const Variable& tokens, int64_t t) {
  return Variable(tokens.value().narrow(1, t, 1).clone().reshape({1, tokens.shape()[-1]}));
}
double number(const Variable& tokens, int64_t t) { return tokens.value().to_vector()[t]; }

Tensor transposed(const Tensor& matrix) {
  const int64_t rows = matrix.shape()[0], columns = matrix.shape()[1];
  Tensor result = Tensor::empty({columns, rows}, matrix.dtype());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      result.data<double>()[j * rows + i] = matrix.data<double>()[i * columns + j];
    }
  }
  return result;
}

/// a x + b y
Tensor combined(double a, const Tensor& x, double b, const Tensor& y) {
  return add(scale(Variable(x), a), scale(Variable(y), b)).value();
}

/// A memory of one or two layers. Weights are [out, in], as linear() takes them.
Variable answer(const std::vector<Variable>& weights, const Variable& key) {
  const Variable first = linear(key, weights[0]);
  return weights.size() == 1 ? first : linear(gelu_tanh(first), weights[1]);
}

/// The gradients of |answer(key) - value|^2 / 2 at weights.
Tensors gradients(const Tensors& weights, const Variable& key, const Variable& value) {
  std::vector<Variable> leaves;
  for (const Tensor& weight : weights) leaves.emplace_back(weight, true);
  const Variable error = add(answer(leaves, key), scale(value, -1));
  backward(scale(sum(multiply(error, error)), 0.5));
  Tensors result;
  for (const Variable& leaf : leaves) result.push_back(leaf.grad());
  return result;
}

void check_near(const Tensor& got, const Tensor& want, double tolerance) {
  REQUIRE(got.elements() == want.elements());
  const std::vector<double> a = got.to_vector(), b = want.to_vector();
  for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) < tolerance * (1 + std::abs(b[i])));
}

}  // namespace

TEST_CASE("autograd/inner gradient: the gated delta rule forgets and then descends the loss of each pair") {
  const int64_t length = 9, dk = 3, dv = 4;
  Tokens draw(1);
  const Variable q = draw.vectors(length, dk), k = draw.vectors(length, dk, 0.5),
                 v = draw.vectors(length, dv);
  const Variable beta = draw.numbers(length, 0, 1), log_decay = draw.numbers(length, -1, 0);
  const Recurrence rule = delta_rule(q, k, v, beta, {.chunk = 4}, log_decay);
  Tensors memory = {Tensor::zeros({dv, dk}, DType::float64)};  // S^T
  for (int64_t t = 0; t < length; ++t) {
    memory[0] = scale(Variable(memory[0]), std::exp(number(log_decay, t))).value();
    memory[0] = combined(1, memory[0], -number(beta, t), gradients(memory, row(k, t), row(v, t))[0]);
    // Rounding, 1e-15; with the rate halved, or the decay behind the step, 0.01 and more.
    check_near(row(rule.output, t).value(), answer({Variable(memory[0])}, row(q, t)).value(), 1e-13);
  }
  check_near(rule.state.value(), transposed(memory[0]), 1e-13);
}

TEST_CASE("autograd/inner gradient: Titans descends with momentum and forgets") {
  const int64_t length = 8, chunk = 3, dk = 3, dv = 4, hidden = 5;
  for (const bool two_layers : {false, true}) {
    CAPTURE(two_layers);
    Tokens draw(2);
    const Variable q = draw.vectors(length, dk), k = draw.vectors(length, dk), v = draw.vectors(length, dv);
    const TitansGates gates{draw.numbers(length, 0.05, 0.4), draw.numbers(length, -0.5, 0),
                            draw.numbers(length, -1, -0.1)};
    Tensors weights, momenta;  // transposed
    if (two_layers) weights = {draw.matrix(hidden, dk, 0.7), draw.matrix(dv, hidden, 0.7)};
    if (!two_layers) weights = {draw.matrix(dv, dk, 0.7)};
    for (const Tensor& weight : weights)
      momenta.push_back(draw.matrix(weight.shape()[0], weight.shape()[1], 0.3));

    const auto by_head = [](const Tensors& matrices) {
      std::vector<Variable> result;
      for (const Tensor& matrix : matrices) {
        const Tensor t = transposed(matrix);
        result.emplace_back(t.reshape({1, 1, t.shape()[0], t.shape()[1]}));
      }
      return result;
    };
    const Titans got = titans(q, k, v, gates, {by_head(weights), by_head(momenta)}, {.chunk = chunk});

    Tensors at_begin;
    for (int64_t t = 0; t < length; ++t) {
      if (t % chunk == 0) at_begin = weights;
      const Tensors gradient = gradients(at_begin, row(k, t), row(v, t));
      for (size_t i = 0; i < weights.size(); ++i) {
        momenta[i] = combined(std::exp(number(gates.log_momentum, t)), momenta[i], -number(gates.rate, t),
                              gradient[i]);
        weights[i] = combined(std::exp(number(gates.log_keep, t)), weights[i], 1, momenta[i]);
      }
      std::vector<Variable> memory;
      for (const Tensor& weight : weights) memory.emplace_back(weight);
      // Rounding, 1e-15; a gradient at other weights, or a gate of another token, 0.01 and more.
      check_near(row(got.output, t).value(), answer(memory, row(q, t)).value(), 1e-12);
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      check_near(got.memory.weights[i].value(), transposed(weights[i]), 1e-12);
      check_near(got.memory.momentum[i].value(), transposed(momenta[i]), 1e-12);
    }
  }
}

TEST_CASE("autograd/inner gradient: Atlas descends the losses of a window") {
  const int64_t length = 8, dk = 3, dv = 4;
  for (const AtlasOptions options :
       {AtlasOptions{.window = 4, .chunk = 3}, AtlasOptions{.window = 2, .chunk = 5}}) {
    CAPTURE(options.window);
    Tokens draw(3);
    const Variable q = draw.vectors(length, dk), k = draw.vectors(length, dk), v = draw.vectors(length, dv);
    const AtlasGates gates{draw.numbers(length, 0.05, 0.2), draw.numbers(length, 0.2, 1),
                           draw.numbers(length, -0.5, 0), draw.numbers(length, -1, -0.1)};
    Tensors weights = {draw.matrix(dv, dk, 0.7)};
    Tensor momentum = draw.matrix(dv, dk, 0.3);
    const auto by_head = [&](const Tensor& matrix) {
      return Variable(transposed(matrix).reshape({1, 1, dk, dv}));
    };
    const Atlas got = atlas(q, k, v, gates, by_head(weights[0]), by_head(momentum), options);

    Tensors at_begin;
    for (int64_t t = 0; t < length; ++t) {
      if (t % options.chunk == 0) at_begin = weights;
      momentum = scale(Variable(momentum), std::exp(number(gates.log_momentum, t))).value();
      for (int64_t j = std::max<int64_t>(0, t - options.window + 1); j <= t; ++j) {
        momentum = combined(1, momentum, -number(gates.rate, t) * number(gates.weight, j),
                            gradients(at_begin, row(k, j), row(v, j))[0]);
      }
      weights[0] = combined(std::exp(number(gates.log_keep, t)), weights[0], 1, momentum);
      // Rounding, 1e-15; a window that is one token shorter errs by 0.01 and more.
      check_near(row(got.output, t).value(), answer({Variable(weights[0])}, row(q, t)).value(), 1e-12);
    }
    check_near(got.matrix.value(), transposed(weights[0]), 1e-12);
    check_near(got.momentum.value(), transposed(momentum), 1e-12);
  }
}

}  // namespace mixgrad
