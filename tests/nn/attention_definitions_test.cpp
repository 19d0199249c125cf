// Mixers with a softmax over keys, against the formulas of their pages, from the modules' own parameters.
// Both agree to 2e-15 of the largest output, and are allowed 1e-12.
#include "tests/nn/definition.h"

namespace mixgrad {
namespace {

using namespace definition;

/// The mean of values [n, size], weighted by the softmax of scores [n].
Vector attended(const Vector& scores, const std::vector<Vector>& values) {
  double total = 0;
  Vector mean(head_size);
  for (size_t j = 0; j < scores.size(); ++j) {
    mean = sum(mean, values[j], std::exp(scores[j]));
    total += std::exp(scores[j]);
  }
  return scaled(mean, 1 / total);
}

struct Options {
  std::string pattern;
  bool causal = true, rope = false;
  int64_t key_heads = heads, window = length;
  bool qk_norm = false, conv = false, forget = false, gate = false;
};

Matrix outputs(const Subject& mixer, const Options& options) {
  const auto project = [&](const char* name) {
    return options.conv ? mixer.convolved(name) : mixer.projected(name);
  };
  const Matrix q = project("q"), k = project("k"), v = project("v");
  const auto placed = [&](Vector x, const char* norm, int64_t t) {
    if (options.qk_norm) x = product(even(x), mixer.vector(norm));
    return options.rope ? rotated(x, t) : x;
  };
  Matrix decay(length, heads), gate(length, width);
  if (options.forget) decay = mixer.decay_gate("decay");
  if (options.gate) gate = mixer.projected("gate");
  Matrix o(length, width);
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t key_head = h / (heads / options.key_heads);
    for (int64_t t = 0; t < length; ++t) {
      const Vector query = placed(q.part(t, h, head_size), "q_norm", t);
      Vector scores;
      std::vector<Vector> values;
      double faded = 0;  // G_t - G_j
      for (int64_t j = options.causal ? t : length - 1; j >= 0 && t - j < options.window; --j) {
        const Vector key = placed(k.part(j, key_head, head_size), "k_norm", j);
        scores.push_back(dot(query, key) / std::sqrt(head_size) + faded);
        values.push_back(v.part(j, key_head, head_size));
        faded += decay[j][h];
      }
      Vector read = attended(scores, values);
      if (options.gate) {
        read = product(product(even(read), mixer.vector("norm")), mapped(gate.part(t, h, head_size), silu));
      }
      o.put(t, h, read);
    }
  }
  return o;
}

}  // namespace

TEST_CASE("nn/sdpa: its output is that of its page") {
  const std::vector<Options> all = {
      {.pattern = "sdpa"},
      {.pattern = "sdpa", .causal = false},
      {.pattern = "sdpa", .rope = true},
      {.pattern = "sdpa(window=5)", .window = 5},
      {.pattern = "sdpa(kv_heads=1,qk_norm=1,gate=1)",
       .rope = true,
       .key_heads = 1,
       .qk_norm = true,
       .gate = true},
      {.pattern = "sdpa(kv_heads=1,conv=1,forget=1)", .key_heads = 1, .conv = true, .forget = true},
  };
  for (const Options& options : all) {
    CAPTURE(options.pattern);
    const Subject mixer(options.pattern, options.causal, options.rope);
    CHECK(mixer.distance_from(outputs(mixer, options)) < 1e-12);
  }
}

TEST_CASE("nn/linformer: its output is that of its page") {
  constexpr int64_t R = 3;
  for (const bool shared : {true, false}) {
    const Subject mixer(str("linformer(rank=3,longest=90,shared=", shared ? 1 : 0, ")"), false);
    const Matrix q = mixer.projected("q"), k = mixer.projected("k"), v = mixer.projected("v");
    const Matrix& E = mixer.parameter("key_mixtures");
    const Matrix& F = mixer.parameter(shared ? "key_mixtures" : "value_mixtures");
    Matrix o(length, width);
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<Vector> keys(R, Vector(head_size)), values = keys;
      for (int64_t j = 0; j < length; ++j) {
        for (int64_t r = 0; r < R; ++r) {
          keys[r] = sum(keys[r], k.part(j, h, head_size), E[j][r]);
          values[r] = sum(values[r], v.part(j, h, head_size), F[j][r]);
        }
      }
      for (int64_t t = 0; t < length; ++t) {
        Vector scores(R);
        for (int64_t r = 0; r < R; ++r) {
          scores[r] = dot(q.part(t, h, head_size), keys[r]) / std::sqrt(head_size);
        }
        o.put(t, h, attended(scores, values));
      }
    }
    CHECK(mixer.distance_from(o) < 1e-12);
  }
}

}  // namespace mixgrad
