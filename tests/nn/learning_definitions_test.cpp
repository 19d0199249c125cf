// Mixers that learn while they read, against the formulas of their pages: token by token, every gradient by
// the chain rule at the weights that the page says, from the modules' own parameters. All agree to 5e-15 of
// the largest output, and are allowed 1e-12.
#include "tests/nn/definition.h"

namespace mixgrad {
namespace {

using namespace definition;

/// z W1 + b1, or two such layers with GELU between them.
struct Network {
  Memory weight1, weight2;
  Vector bias1, bias2;
  bool two_layers;

  Vector answer(const Vector& z) const {
    const Vector first = sum(weight1.answer(z), bias1);
    return two_layers ? sum(weight2.answer(mapped(first, gelu)), bias2) : first;
  }
  /// weights += rate times the gradient of <error, answer(z)> at the weights `at`.
  void add_gradient(const Network& at, const Vector& z, const Vector& error, double rate) {
    if (!two_layers) {
      weight1.write(z, error, rate);
      bias1 = sum(bias1, error, rate);
      return;
    }
    const Vector first = sum(at.weight1.answer(z), at.bias1);
    weight2.write(mapped(first, gelu), error, rate);
    bias2 = sum(bias2, error, rate);
    const Vector hidden_error = product(at.weight2.answer_backwards(error), mapped(first, gelu_slope));
    weight1.write(z, hidden_error, rate);
    bias1 = sum(bias1, hidden_error, rate);
  }
  /// kept this + factor other
  void combine(double kept, const Network& other, double factor) {
    weight1.values = sum(scaled(weight1.values, kept), other.weight1.values, factor);
    weight2.values = sum(scaled(weight2.values, kept), other.weight2.values, factor);
    bias1 = sum(scaled(bias1, kept), other.bias1, factor);
    bias2 = sum(scaled(bias2, kept), other.bias2, factor);
  }
};

/// Rows h rows_each to (h + 1) rows_each.
Memory rows_of(const Matrix& matrix, int64_t h, int64_t rows_each) {
  Memory part(rows_each, matrix.columns);
  std::copy_n(matrix[h * rows_each], rows_each * matrix.columns, part.values.begin());
  return part;
}

double mean(const Vector& x) {
  double total = 0;
  for (const double value : x) total += value;
  return total / static_cast<double>(x.size());
}

/// What divides z less its mean under the layer norm.
double deviation(const Vector& z, double eps) {
  const Vector off = mapped(z, [m = mean(z)](double value) { return value - m; });
  return std::sqrt(dot(off, off) / static_cast<double>(z.size()) + eps);
}
Vector layer_normed(const Vector& z, double eps) {
  return mapped(z, [m = mean(z), s = deviation(z, eps)](double value) { return (value - m) / s; });
}

/// The gradient by z of |norm(z) (.) gamma + beta - target|^2 / 2.
Vector norm_regression_gradient(const Vector& z, const Vector& gamma, const Vector& beta,
                                const Vector& target) {
  const Vector n = layer_normed(z, 1e-6);
  const Vector by_n = product(sum(sum(product(n, gamma), beta), target, -1), gamma);
  Vector gradient(z.size());
  for (size_t i = 0; i < z.size(); ++i) {
    for (size_t j = 0; j < z.size(); ++j) {  // dn_j / dz_i
      const double slope = ((i == j ? 1 : 0) - (1 + n[i] * n[j]) / static_cast<double>(z.size()));
      gradient[i] += by_n[j] * slope / deviation(z, 1e-6);
    }
  }
  return gradient;
}

void check_ttt(const std::string& pattern, bool two_layers) {
  // With rates that are not divided by the head size: 0.9.
  constexpr int64_t M = 4;
  const Subject mixer(pattern);
  const Matrix q = mixer.projected("q"), k = mixer.projected("k"), v = mixer.projected("v");
  const Matrix rates = mixer.projected("rate");
  const Vector row = mapped(mixer.vector("row"), softplus);
  Matrix o(length, width);
  for (int64_t h = 0; h < heads; ++h) {
    const Vector gamma = mixer.parameter("gamma").part(h, 0, head_size);
    const Vector beta = mixer.parameter("beta").part(h, 0, head_size);
    const Matrix& first = mixer.parameter(two_layers ? "weight1" : "weight");
    const Matrix& first_bias = mixer.parameter(two_layers ? "bias1" : "bias");
    Network network{
        rows_of(first, h, head_size), {0, 0}, first_bias.part(h, 0, first_bias.columns), {}, two_layers};
    if (two_layers) {
      network.weight2 = rows_of(mixer.parameter("weight2"), h, first.columns);
      network.bias2 = mixer.parameter("bias2").part(h, 0, head_size);
    }
    Network at = network, gradients = network;  // before the mini-batch; the sum of its gradients so far
    for (int64_t t = 0; t < length; ++t) {
      const int64_t place = t % M;
      if (place == 0) {
        at = network;
        gradients.combine(0, network, 0);
      }
      const Vector key = rotated(k.part(t, h, head_size), place),
                   query = rotated(q.part(t, h, head_size), place);
      const Vector target = sum(v.part(t, h, head_size), key, -1);
      const Vector error = norm_regression_gradient(at.answer(key), gamma, beta, target);
      gradients.add_gradient(at, key, error, sigmoid(rates[t][h]) / head_size);
      network = at;
      network.combine(1, gradients, -row[place]);
      const Vector normed = layer_normed(network.answer(query), 1e-6);
      o.put(t, h, sum(sum(query, product(normed, gamma)), beta));
    }
  }
  for (int64_t t = 0; t < length; ++t) {
    const Vector normed = layer_normed(o.part(t, 0, width), 1e-5);
    o.put(t, 0, sum(product(normed, mixer.vector("norm.weight")), mixer.vector("norm.bias")));
  }
  CHECK(mixer.distance_from(o) < 1e-12);
}

/// Momentum, rate and decay of a token, as titans and atlas have them.
struct Learning {
  Matrix momentum, rate, keep;
  double largest_rate;

  Learning(const Subject& mixer, double largest_rate)
      : momentum(mixer.projected("momentum")),
        rate(mixer.projected("rate")),
        keep(mixer.decay_gate("keep")),
        largest_rate(largest_rate) {}

  double eta(int64_t t, int64_t h) const { return sigmoid(momentum[t][h]); }
  /// Without 1 - eta, titans is off by 0.5.
  double theta(int64_t t, int64_t h) const { return largest_rate * sigmoid(rate[t][h]) * (1 - eta(t, h)); }
  double kept(int64_t t, int64_t h) const { return std::exp(keep[t][h]); }
};

Vector gated(const Subject& mixer, const Vector& o, const Vector& gate) {
  return product(product(even(o), mixer.vector("norm")), mapped(gate, silu));
}

}  // namespace

TEST_CASE("nn/ttt_linear: its output is that of its page") { check_ttt("ttt_linear(mini_batch=4)", false); }

TEST_CASE("nn/ttt_mlp: its output is that of its page") {
  check_ttt("ttt_mlp(mini_batch=4,expansion=2)", true);
}

TEST_CASE("nn/titans: its output is that of its page") {
  constexpr int64_t C = 4;
  for (const int64_t expansion : {0, 2}) {
    const Subject mixer(str("titans(chunk=4,expansion=", expansion, ")"));
    const Matrix q = mixer.convolved("q"), k = mixer.convolved("k"), v = mixer.convolved("v");
    const Matrix gate = mixer.projected("gate");
    const Learning learning(mixer, 1.0 / C);
    Matrix o(length, width);
    for (int64_t h = 0; h < heads; ++h) {
      const bool two_layers = expansion > 0;
      const Matrix& first = mixer.parameter(two_layers ? "weight1" : "weight");
      // Biases that are 0, and whose gradients are thrown away.
      Network W{rows_of(first, h, head_size), {0, 0}, Vector(first.columns), {}, two_layers};
      if (two_layers) {
        W.weight2 = rows_of(mixer.parameter("weight2"), h, first.columns);
        W.bias2 = Vector(head_size);
      }
      Network S = W, at = W;
      S.combine(0, W, 0);
      for (int64_t t = 0; t < length; ++t) {
        if (t % C == 0) at = W;
        const Vector key = unit(k.part(t, h, head_size));
        const Vector error = sum(at.answer(key), v.part(t, h, head_size), -1);
        S.combine(learning.eta(t, h), S, 0);
        S.add_gradient(at, key, error, -learning.theta(t, h));
        S.bias1 = scaled(S.bias1, 0);
        S.bias2 = scaled(S.bias2, 0);
        W.combine(learning.kept(t, h), S, 1);
        const Vector read = W.answer(unit(q.part(t, h, head_size)));
        o.put(t, h, gated(mixer, read, gate.part(t, h, head_size)));
      }
    }
    CHECK(mixer.distance_from(o) < 1e-12);
  }
}

TEST_CASE("nn/atlas: its output is that of its page") {
  constexpr int64_t C = 4, window = 3, dk = 2, n = dk + dk * dk;
  const Subject mixer("atlas(chunk=4,window=3,key_dim=2)");
  const Matrix q = mixer.convolved("q"), k = mixer.convolved("k"), v = mixer.convolved("v");
  const Matrix gate = mixer.projected("gate"), weight = mixer.projected("weight");
  const Learning learning(mixer, 1.0 / C);
  const auto phi = [&](const Vector& z, const char* coefficients) {
    const Vector a = mixer.vector(coefficients);
    Vector features = scaled(z, a[0]);
    for (const double left : z) {
      for (const double right : z) features.push_back(a[1] * left * right);
    }
    return features;
  };
  Matrix o(length, width);
  for (int64_t h = 0; h < heads; ++h) {
    Memory W = rows_of(mixer.parameter("matrix"), h, n), S(n, head_size), at = W;
    for (int64_t t = 0; t < length; ++t) {
      if (t % C == 0) at = W;
      S.values = scaled(S.values, learning.eta(t, h));
      for (int64_t j = std::max<int64_t>(0, t - window + 1); j <= t; ++j) {
        const Vector key = phi(unit(k.part(j, h, dk)), "k_coefficients");
        const Vector error = sum(at.answer(key), v.part(j, h, head_size), -1);
        S.write(key, error, -learning.theta(t, h) * sigmoid(weight[j][h]) / window);
      }
      W.values = sum(scaled(W.values, learning.kept(t, h)), S.values);
      const Vector read = W.answer(phi(unit(q.part(t, h, dk)), "q_coefficients"));
      o.put(t, h, gated(mixer, read, gate.part(t, h, head_size)));
    }
  }
  CHECK(mixer.distance_from(o) < 1e-12);
}

}  // namespace mixgrad
