// Mixers whose matrix adds up, and forgets, against the formulas of their pages: token by token, from the
// modules' own parameters. All agree to 2e-14 of the largest output, and are allowed 1e-12. An eps of twice
// the page's is off by 8e-9 or more, a power of 1/15 in gla by 0.02.
#include "tests/nn/definition.h"

namespace mixgrad {
namespace {

using namespace definition;

/// o of a head that adds: causal, a token reads after its own write; else all are written before any read.
template <class Write, class Read>
void read_head(bool causal, const Write& write, const Read& read) {
  for (int64_t t = 0; t < length && !causal; ++t) write(t);
  for (int64_t t = 0; t < length; ++t) {
    if (causal) write(t);
    read(t);
  }
}

/// f(q_t) S_t over f(q_t) . z_t + eps, for the features of a token.
template <class Features>
Matrix weighted_means(const Subject& mixer, bool causal, int64_t features, const Features& features_of) {
  const Matrix q = mixer.projected("q"), k = mixer.projected("k"), v = mixer.projected("v");
  const int64_t key_dim = q.columns / heads;
  Matrix o(length, width);
  for (int64_t h = 0; h < heads; ++h) {
    Memory S(features, head_size);
    Vector z(features);
    read_head(
        causal,
        [&](int64_t t) {
          const Vector key = features_of(k.part(t, h, key_dim), h);
          S.write(key, v.part(t, h, head_size));
          z = sum(z, key);
        },
        [&](int64_t t) {
          const Vector query = features_of(q.part(t, h, key_dim), h);
          o.put(t, h, scaled(S.answer(query), 1 / (dot(query, z) + 1e-6)));
        });
  }
  return o;
}

/// The w_j of a performer: of each d, one is orthogonal to those before it, and as long as a normal vector.
Matrix orthogonal_vectors(int64_t count, int64_t size, uint64_t seed) {
  Generator generator(seed);
  Matrix w(count, size);
  w.values = normal({count, size}, 1, generator, DType::float64).to_vector();
  Matrix lengths(count, size);
  lengths.values = normal({count, size}, 1, generator, DType::float64).to_vector();
  for (int64_t i = 0; i < count; ++i) {
    Vector row = w.part(i, 0, size);
    for (int64_t j = i - i % size; j < i; ++j) {
      const Vector other = w.part(j, 0, size);
      row = sum(row, other, -dot(row, other) / dot(other, other));
    }
    const Vector length_of = lengths.part(i, 0, size);
    w.put(i, 0, scaled(row, std::sqrt(dot(length_of, length_of) / dot(row, row))));
  }
  return w;
}

/// Softmax over the components of log prior + log density; the mixture of head h.
Vector responsibilities(const Subject& mixer, int64_t components, const Vector& x, int64_t h) {
  const Matrix &mean = mixer.parameter("mean"), &omega = mixer.parameter("omega");
  const Vector alpha = mixer.parameter("alpha").part(h, 0, components);
  double priors = 0, total = 0;
  for (const double value : alpha) priors += std::exp(value);
  Vector gamma(components);
  for (int64_t k = 0; k < components; ++k) {
    double density = std::exp(alpha[k]) / priors;
    for (size_t m = 0; m < x.size(); ++m) {
      const double variance = softplus(omega[h * components + k][m]) + 1e-4;
      const double off = x[m] - mean[h * components + k][m];
      density *= std::exp(-off * off / (2 * variance)) / std::sqrt(2 * M_PI * variance);
    }
    gamma[k] = density;
    total += density;
  }
  return scaled(gamma, 1 / total);
}

}  // namespace

TEST_CASE("nn/linear: its output is that of its page") {
  for (const bool silu_features : {true, false}) {
    for (const bool causal : {true, false}) {
      const Subject mixer(silu_features ? "linear" : "linear(silu=0)", causal);
      const auto feature = [&](const Vector& x) { return silu_features ? mapped(x, silu) : x; };
      const Matrix q = mixer.projected("q"), k = mixer.projected("k"), v = mixer.projected("v");
      const Vector n = mixer.vector("norm");
      Matrix o(length, width);
      for (int64_t h = 0; h < heads; ++h) {
        Memory S(head_size, head_size);
        read_head(
            causal, [&](int64_t t) { S.write(feature(k.part(t, h, head_size)), v.part(t, h, head_size)); },
            [&](int64_t t) {
              const Vector read =
                  scaled(S.answer(feature(q.part(t, h, head_size))), 1 / std::sqrt(head_size));
              o.put(t, h, product(even(read), n));
            });
      }
      CHECK(mixer.distance_from(o) < 1e-12);
    }
  }
}

TEST_CASE("nn/linear_transformer: its output is that of its page") {
  for (const bool causal : {true, false}) {
    const Subject mixer("linear_transformer", causal);
    const Matrix o = weighted_means(mixer, causal, head_size, [](const Vector& x, int64_t) {
      return mapped(x, [](double value) { return value > 0 ? value + 1 : std::exp(value); });
    });
    CHECK(mixer.distance_from(o) < 1e-12);
  }
}

TEST_CASE("nn/performer: its output is that of its page") {
  for (const uint64_t seed : {1, 7}) {
    constexpr int64_t features = 6;  // more than a head's size: not all can be orthogonal
    const Subject mixer(str("performer(features=", features, ",seed=", seed, ")"));
    const Matrix w = orthogonal_vectors(features, head_size, seed);
    const Matrix o = weighted_means(mixer, true, features, [&](const Vector& x, int64_t) {
      const Vector small = scaled(x, std::pow(head_size, -0.25));
      Vector phi(features);
      for (int64_t j = 0; j < features; ++j) {
        const double exponent = dot(w.part(j, 0, head_size), small) - dot(small, small) / 2;
        phi[j] = (std::exp(exponent) + 1e-4) / std::sqrt(features);
      }
      return phi;
    });
    CHECK(mixer.distance_from(o) < 1e-12);
  }
}

TEST_CASE("nn/gma: its output is that of its page") {
  for (const bool causal : {true, false}) {
    for (const bool normalise : {true, false}) {
      const Subject mixer(str("gma(components=5,routing=3,normalise=", normalise ? 1 : 0, ")"), causal);
      const Matrix o = weighted_means(mixer, causal, 5, [&](const Vector& x, int64_t h) {
        return responsibilities(mixer, 5, normalise ? even(x) : x, h);
      });
      CHECK(mixer.distance_from(o) < 1e-12);
    }
  }
}

TEST_CASE("nn/retention: its output is that of its page") {
  // With 2^(-6-h) for 2^(-5-h): 0.2.
  constexpr int64_t dk = 4, dv = 3;
  const Subject mixer("retention(key_dim=4,value_dim=3)");
  const Matrix q = mixer.projected("q"), k = mixer.projected("k"), v = mixer.projected("v");
  const Matrix gate = mixer.projected("gate");
  Matrix o(length, heads * dv);
  for (int64_t h = 0; h < heads; ++h) {
    Memory S(dk, dv);
    for (int64_t t = 0; t < length; ++t) {
      S.fade(std::log(1 - std::pow(2, -5 - static_cast<double>(h))));
      S.write(rotated(k.part(t, h, dk), t), v.part(t, h, dv));
      const Vector read = scaled(S.answer(rotated(q.part(t, h, dk), t)), 1 / std::sqrt(dk));
      o.put(t, h, product(product(even(read), mixer.vector("norm")), mapped(gate.part(t, h, dv), silu)));
    }
  }
  CHECK(mixer.distance_from(o) < 1e-12);
}

TEST_CASE("nn/gla: its output is that of its page") {
  constexpr int64_t dk = 3, dv = 5;
  const Subject mixer("gla(key_dim=3,value_dim=5,decay_rank=2)");
  const Matrix q = mixer.projected("q"), k = mixer.projected("k"), v = mixer.projected("v");
  const Matrix gate = mixer.projected("gate");
  const Matrix decay = mixer.projected(mixer.projected("decay_down"), "decay_up");
  Matrix o(length, heads * dv);
  for (int64_t h = 0; h < heads; ++h) {
    Memory S(dk, dv);
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < dk; ++i) {
        const double kept = std::pow(sigmoid(decay[t][h * dk + i]), 1.0 / 16);
        for (int64_t j = 0; j < dv; ++j) S[i][j] *= kept;
      }
      S.write(k.part(t, h, dk), v.part(t, h, dv));
      const Vector read = scaled(S.answer(q.part(t, h, dk)), 1 / std::sqrt(dk));
      o.put(t, h, product(product(even(read), mixer.vector("norm")), mapped(gate.part(t, h, dv), silu)));
    }
  }
  CHECK(mixer.distance_from(o) < 1e-12);
}

TEST_CASE("nn/mamba2: its output is that of its page") {
  // With the norm before the gate: 0.7.
  constexpr int64_t N = 5, P = 4;
  for (const int64_t groups : {1, 2}) {
    const Subject mixer(str("mamba2(state=5,expand=1,groups=", groups, ")"));
    const Matrix C = mixer.convolved("q"), B = mixer.convolved("k"), X = mixer.convolved("v");
    const Matrix z = mixer.projected("gate"), steps = mixer.projected("dt");
    const Vector A_log = mixer.vector("A_log"), bias = mixer.vector("dt_bias"), D = mixer.vector("D");
    Matrix o(length, heads * P);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t group = h / (heads / groups);
      Memory S(N, P);
      for (int64_t t = 0; t < length; ++t) {
        const double dt = softplus(steps[t][h] + bias[h]);
        const Vector input = X.part(t, h, P);
        S.fade(-std::exp(A_log[h]) * dt);
        S.write(B.part(t, group, N), input, dt);
        o.put(t, h, sum(S.answer(C.part(t, group, N)), input, D[h]));
      }
    }
    const int64_t channels = heads * P / groups;
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t g = 0; g < groups; ++g) {
        const Vector gated = product(o.part(t, g, channels), mapped(z.part(t, g, channels), silu));
        o.put(t, g, product(even(gated), mixer.parameter("norm").part(0, g, channels)));
      }
    }
    CHECK(mixer.distance_from(o) < 1e-12);
  }
}

TEST_CASE("nn/mamba: its output is that of its page") {
  constexpr int64_t N = 3, channels = 16;
  const Subject mixer("mamba(state=3,expand=2,step_rank=2)");
  const Matrix u = mixer.convolved("x", "conv"), gate = mixer.projected("gate");
  const Matrix low = mixer.projected(u, "step_down"), B = mixer.projected(u, "B"),
               C = mixer.projected(u, "C");
  const Matrix &up = mixer.parameter("step_up"), &A_log = mixer.parameter("A_log");
  const Vector bias = mixer.vector("step_bias"), D = mixer.vector("D");
  Matrix y(length, channels);
  for (int64_t d = 0; d < channels; ++d) {
    Vector state(N);
    for (int64_t t = 0; t < length; ++t) {
      const double delta = softplus(dot(low.part(t, 0, 2), up.part(d, 0, 2)) + bias[d]);
      double read = D[d] * u[t][d];
      for (int64_t n = 0; n < N; ++n) {
        state[n] = std::exp(-delta * std::exp(A_log[d][n])) * state[n] + delta * u[t][d] * B[t][n];
        read += C[t][n] * state[n];
      }
      y[t][d] = read * silu(gate[t][d]);
    }
  }
  CHECK(mixer.distance_from(y) < 1e-12);
}

}  // namespace mixgrad
