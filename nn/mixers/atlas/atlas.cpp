// Atlas: a memory of polynomial features that learns from a window of tokens at each step. Derivation in
// atlas.md.
#include "autograd/ops/atlas.h"

#include "autograd/learning/chunked.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/polynomial.h"
#include "nn/mixers/titans/memory_mixer.h"

namespace mixgrad {

namespace {

/// Decodes with two numbers for each entry of the matrix, and the tokens of a chunk and a window.
class AtlasMixer final : public MemoryMixer {
 public:
  AtlasMixer(const MixerConfig& config, Initialiser& initialiser)
      : MemoryMixer(config, "atlas", config.integer_option("key_dim"), initialiser),
        features_(key_dim_ + key_dim_ * key_dim_),
        options_{.window = config.integer_option("window"), .chunk = chunk_},
        weight_(width_, heads_, true, initialiser),
        q_coefficients_(initialiser.values(Tensor::from(std::vector<double>{1, 0.5}, {2}))),
        k_coefficients_(initialiser.values(Tensor::from(std::vector<double>{1, 0.5}, {2}))),
        matrix_(initialiser.normal({heads_, features_, head_size_}, 0.02)) {
    declare("weight", weight_);
    declare("q_coefficients", q_coefficients_, Decay::no);
    declare("k_coefficients", k_coefficients_, Decay::no);
    declare("matrix", matrix_, Decay::no);
  }

  double flops_per_token(int64_t) const override {
    const auto n = static_cast<double>(features_), d = static_cast<double>(head_size_);
    const auto chunk = static_cast<double>(chunk_), all = static_cast<double>(chunk_ + options_.window - 1);
    // The answers to the keys of chunk and window, the read of matrix and momentum, the write of both; Gram
    // matrix and errors; features; coefficients.
    const double layer = (2 * all / chunk + 4 + 4 * all / chunk) * n * d + 2 * all * (n + d);
    return flops_of_convolutions() + static_cast<double>(heads_) * (layer + 4 * n + 4 * chunk * all);
  }

 protected:
  Variable read(const Tokens& t) override {
    const Variable matrix = repeated(matrix_, t.x.shape()[0]);
    return atlas(queries(t), keys(t), t.v, {t.rate, weights(t), t.log_keep, t.log_momentum}, matrix,
                 Variable(zeros_like(matrix.value())), options_)
        .output;
  }

  Tensor read_on(const Tokens& t, int64_t position, Tensors& memory) override {
    return atlas_read_on(queries(t).value(), keys(t).value(), t.v.value(), t.rate.value(), weights(t).value(),
                         t.log_keep.value(), t.log_momentum.value(), options_, position, memory);
  }

  Tensors first_memory(int64_t batch) const override {
    const Tensor matrix = repeated(matrix_, batch).value();
    return atlas_memory(matrix, zeros_like(matrix), options_);
  }

 private:
  Variable queries(const Tokens& t) const { return polynomial(t.q, q_coefficients_); }
  Variable keys(const Tokens& t) const { return polynomial(t.k, k_coefficients_); }
  /// Of a token in the steps that look at it, of which there are as many as the window is long.
  Variable weights(const Tokens& t) const {
    return scale(sigmoid(weight_.forward(t.x)), 1 / static_cast<double>(options_.window));
  }

  const int64_t features_;  // n = dk + dk^2
  const AtlasOptions options_;
  Linear weight_;
  Variable q_coefficients_, k_coefficients_;
  Variable matrix_;  // before the first token
};

std::vector<MixerOption> options() {
  std::vector<MixerOption> all = memory_options();
  all.push_back({"window", 4, 1, 1024, true, "c, the latest tokens that each step looks at"});
  all.push_back({"key_dim", 8, 1, 256, true, "dk, size of a head's queries and keys before their features"});
  return all;
}

}  // namespace

MixerKind atlas_mixer() {
  return {.name = "atlas",
          .summary = "Atlas: a memory of polynomial features; each step learns from a window of tokens",
          .forms = {.causal = true},
          .options = options(),
          .check_options = "chunk=4,window=3,key_dim=2",
          .make = construct<AtlasMixer>};
}

}  // namespace mixgrad
