// Linformer: attention over a fixed number of mixtures of all keys and values. Derivation in linformer.md.
#include "autograd/ops/linformer.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {

namespace {

const MixerForms forms{.bidirectional = true, .key_mask = true};

class Linformer final : public Mixer {
 public:
  Linformer(const MixerConfig& config, Initialiser& initialiser)
      : Mixer(config, "linformer", forms),
        head_size_(config.width / config.heads),
        rank_(config.integer_option("rank")),
        q_(config.width, config.width, false, initialiser),
        k_(config.width, config.width, false, initialiser),
        v_(config.width, config.width, false, initialiser),
        out_(config.width, config.width, false, initialiser),
        key_mixtures_(mixtures(config, initialiser)) {
    declare("q", q_);
    declare("k", k_);
    declare("v", v_);
    declare("out", out_);
    declare("key_mixtures", key_mixtures_, Decay::yes);
    if (config.option("shared") != 0) return;
    value_mixtures_ = mixtures(config, initialiser);
    declare("value_mixtures", value_mixtures_, Decay::yes);
  }

  /// Nothing: what has no causal form is not read in pieces.
  MixerState initial_state(int64_t, int64_t) const override { return {}; }

  double flops_per_token(int64_t) const override {
    return 8.0 * static_cast<double>(rank_ * width_);  // two mixtures of tokens, two products of attention
  }

 protected:
  Variable mix(const MixerInput& input) override {
    const double scale = 1 / std::sqrt(static_cast<double>(head_size_));
    const Variable o =
        linformer(heads(q_.forward(input.x)), heads(k_.forward(input.x)), heads(v_.forward(input.x)),
                  key_mixtures_, value_mixtures_, scale, input.key_mask);
    return out_.forward(reshape(o, input.x.shape()));
  }

 private:
  /// Uniform between -1 / sqrt(R) and 1 / sqrt(R): [N, R].
  static Variable mixtures(const MixerConfig& config, Initialiser& initialiser) {
    const int64_t longest = config.integer_option("longest"), rank = config.integer_option("rank");
    const double bound = 1 / std::sqrt(static_cast<double>(rank));
    return initialiser.values(
        uniform({longest, rank}, -bound, bound, initialiser.generator(), DType::float64));
  }

  Variable heads(const Variable& x) const {
    return reshape(x, {x.shape()[0], x.shape()[1], heads_, head_size_});
  }

  const int64_t head_size_;
  const int64_t rank_;
  Linear q_, k_, v_, out_;
  Variable key_mixtures_;    // E [N, R]
  Variable value_mixtures_;  // F [N, R]; undefined: E serves both
};

}  // namespace

MixerKind linformer_mixer() {
  return {
      .name = "linformer",
      .summary = "Linformer: attention over mixtures of keys and values, up to a fixed length",
      .forms = forms,
      .options = {{"rank", 16, 1, 1 << 16, true, "mixtures of keys, and of values: R"},
                  {"longest", 2048, 1, 1 << 24, true, "the longest sequence, in tokens: N"},
                  {"shared", 1, 0, 1, true, "1: keys and values are mixed alike; 0: each in its own way"}},
      .check_options = "rank=3,longest=70,shared=0",
      .make = construct<Linformer>};
}

}  // namespace mixgrad
