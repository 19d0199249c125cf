// Mixers whose matrix is corrected, against the formulas of their pages: token by token, from the modules'
// own parameters. All agree to 5e-15 of the largest output, and are allowed 1e-12. A ridge of 0.26 instead of
// 0.25 is off by 0.005, rates of up to 1.9 instead of 2 by 0.05.
#include "tests/nn/definition.h"

namespace mixgrad {
namespace {

using namespace definition;

constexpr int64_t dk = 3, dv = 5;

/// S += rate key^T (value - key S)
void correct(Memory& S, const Vector& key, const Vector& value, double rate) {
  S.write(key, sum(value, S.answer(key), -1), rate);
}

/// y = o / rms(o) (.) n, times silu of the gate if there is one.
Vector finished(const Subject& mixer, const Vector& o, const Vector& gate = {}) {
  const Vector normed = product(even(o), mixer.vector("norm"));
  return gate.empty() ? normed : product(normed, mapped(gate, silu));
}

/// The x of A x = b, by elimination; A is positive definite.
Vector solved(Matrix A, Vector b) {
  const int64_t n = A.rows;
  for (int64_t pivot = 0; pivot < n; ++pivot) {
    for (int64_t row = pivot + 1; row < n; ++row) {
      const double factor = A[row][pivot] / A[pivot][pivot];
      for (int64_t column = pivot; column < n; ++column) A[row][column] -= factor * A[pivot][column];
      b[row] -= factor * b[pivot];
    }
  }
  for (int64_t row = n - 1; row >= 0; --row) {
    for (int64_t column = row + 1; column < n; ++column) b[row] -= A[row][column] * b[column];
    b[row] /= A[row][row];
  }
  return b;
}

}  // namespace

TEST_CASE("nn/delta: its output is that of its page") {
  for (const int64_t key_heads : {1, 2}) {
    const Subject mixer(str("delta(key_heads=", key_heads, ",key_dim=3,value_dim=5,rate=1.5)"));
    const Matrix q = mixer.convolved("q"), k = mixer.convolved("k"), v = mixer.convolved("v");
    const Matrix beta = mixer.projected("beta");
    Matrix o(length, heads * dv);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t key_head = h / (heads / key_heads);
      Memory S(dk, dv);
      for (int64_t t = 0; t < length; ++t) {
        correct(S, unit(k.part(t, key_head, dk)), v.part(t, h, dv), 1.5 * sigmoid(beta[t][h]));
        const Vector read = scaled(S.answer(unit(q.part(t, key_head, dk))), 1 / std::sqrt(dk));
        o.put(t, h, finished(mixer, read));
      }
    }
    CHECK(mixer.distance_from(o) < 1e-12);
  }
}

TEST_CASE("nn/gated_delta: its output is that of its page") {
  const Subject mixer("gated_delta(key_heads=1,key_dim=3,value_dim=5)");
  const Matrix q = mixer.convolved("q"), k = mixer.convolved("k"), v = mixer.convolved("v");
  const Matrix beta = mixer.projected("beta"), gate = mixer.projected("gate");
  const Matrix decay = mixer.decay_gate("decay");
  Matrix o(length, heads * dv);
  for (int64_t h = 0; h < heads; ++h) {
    Memory S(dk, dv);
    for (int64_t t = 0; t < length; ++t) {
      S.fade(decay[t][h]);
      correct(S, unit(k.part(t, 0, dk)), v.part(t, h, dv), sigmoid(beta[t][h]));
      const Vector read = scaled(S.answer(unit(q.part(t, 0, dk))), 1 / std::sqrt(dk));
      o.put(t, h, finished(mixer, read, gate.part(t, h, dv)));
    }
  }
  CHECK(mixer.distance_from(o) < 1e-12);
}

TEST_CASE("nn/delta_product: its output is that of its page") {
  constexpr int64_t steps = 3;
  const Subject mixer("delta_product(key_heads=1,key_dim=3,value_dim=5,steps=3)");
  const Matrix q = mixer.convolved("q"), k = mixer.convolved("k"), v = mixer.convolved("v");
  const Matrix beta = mixer.projected("beta"), gate = mixer.projected("gate");
  const Matrix decay = mixer.decay_gate("decay");
  Matrix o(length, heads * dv);
  for (int64_t h = 0; h < heads; ++h) {
    Memory S(dk, dv);
    for (int64_t t = 0; t < length; ++t) {
      S.fade(decay[t][h]);
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t part = step * heads + h;
        correct(S, unit(k.part(t, step, dk)), v.part(t, part, dv), 2 * sigmoid(beta[t][part]));
      }
      const Vector read = scaled(S.answer(unit(q.part(t, 0, dk))), 1 / std::sqrt(dk));
      o.put(t, h, finished(mixer, read, gate.part(t, h, dv)));
    }
  }
  CHECK(mixer.distance_from(o) < 1e-12);
}

TEST_CASE("nn/kda: its output is that of its page") {
  const Subject mixer("kda(key_dim=3,value_dim=5)");
  const Matrix q = mixer.convolved("q"), k = mixer.convolved("k"), v = mixer.convolved("v");
  const Matrix beta = mixer.projected("beta");
  const Matrix gate = mixer.projected(mixer.projected("gate_down"), "gate");
  const Matrix steps = mixer.projected(mixer.projected("decay_down"), "decay_up");
  const Vector A_log = mixer.vector("A_log");
  Matrix o(length, heads * dv);
  for (int64_t h = 0; h < heads; ++h) {
    const Vector bias = mixer.parameter("dt_bias").part(h, 0, dk);
    Memory S(dk, dv);
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < dk; ++i) {
        const double kept = std::exp(-std::exp(A_log[h]) * softplus(steps[t][h * dk + i] + bias[i]));
        for (int64_t j = 0; j < dv; ++j) S[i][j] *= kept;
      }
      correct(S, unit(k.part(t, h, dk)), v.part(t, h, dv), sigmoid(beta[t][h]));
      const Vector read = scaled(S.answer(unit(q.part(t, h, dk))), 1 / std::sqrt(dk));
      o.put(t, h, product(finished(mixer, read), mapped(gate.part(t, h, dv), sigmoid)));
    }
  }
  CHECK(mixer.distance_from(o) < 1e-12);
}

TEST_CASE("nn/longhorn: its output is that of its page") {
  for (const bool diagonal : {false, true}) {
    const Subject mixer(str("longhorn(key_heads=1,key_dim=3,value_dim=5,diagonal=", diagonal ? 1 : 0, ")"));
    const Matrix q = mixer.convolved("q"), k = mixer.convolved("k"), v = mixer.convolved("v");
    const Matrix beta = mixer.projected("beta"), gate = mixer.projected("gate");
    Matrix o(length, heads * dv);
    for (int64_t h = 0; h < heads; ++h) {
      Memory S(dk, dv);
      for (int64_t t = 0; t < length; ++t) {
        const Vector key = k.part(t, 0, dk), value = v.part(t, h, dv);
        const auto rate_of = [&](double b) { return sigmoid(b) / (1 + sigmoid(b) * dot(key, key)); };
        if (diagonal) {
          for (int64_t d = 0; d < dk; ++d) {
            for (int64_t e = 0; e < dv; ++e) {
              const double rate = rate_of(beta[t][h * dv + e]);
              S[d][e] = (1 - rate * key[d] * key[d]) * S[d][e] + rate * key[d] * value[e];
            }
          }
        } else {
          correct(S, key, value, rate_of(beta[t][h]));
        }
        const Vector read = scaled(S.answer(q.part(t, 0, dk)), 1 / std::sqrt(dk));
        o.put(t, h, finished(mixer, read, gate.part(t, h, dv)));
      }
    }
    CHECK(mixer.distance_from(o) < 1e-12);
  }
}

TEST_CASE("nn/mesa: its output is that of its page") {
  const Subject mixer("mesa(key_dim=3,value_dim=5)");
  const Matrix q = mixer.convolved("q"), k = mixer.convolved("k"), v = mixer.projected("v");
  const Matrix beta = mixer.projected("beta"), decay = mixer.decay_gate("decay");
  Matrix o(length, heads * dv);
  for (int64_t h = 0; h < heads; ++h) {
    const Vector ridge = mixer.parameter("ridge").part(h, 0, dk);
    Memory H(dk, dk), B(dk, dv);
    for (int64_t t = 0; t < length; ++t) {
      const Vector key = unit(k.part(t, h, dk));
      H.fade(decay[t][h]);
      H.write(key, key, sigmoid(beta[t][h]));
      B.fade(decay[t][h]);
      B.write(key, v.part(t, h, dv), sigmoid(beta[t][h]));
      Matrix A = H;
      for (int64_t i = 0; i < dk; ++i) A[i][i] += 0.25 + softplus(ridge[i]);
      o.put(t, h, finished(mixer, B.answer(solved(A, unit(q.part(t, h, dk))))));
    }
  }
  CHECK(mixer.distance_from(o) < 1e-12);
}

}  // namespace mixgrad
