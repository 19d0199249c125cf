// Mamba-2: a selective state space model as a recurrence over matrices. Derivation in mamba2.md.
#include "autograd/ops/decay_gate.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/ssd.h"
#include "nn/recurrent_mixer.h"

namespace mixgrad {

namespace {

const MixerForms forms{.causal = true, .documents = true, .recorded_state = true};

/// The paper's C, B and x are queries, keys and values.
RecurrentParts ssd_parts(const MixerConfig& config) {
  return {.key_heads = config.group_option("mamba2", "groups"),
          .key_dim = config.integer_option("state"),
          .value_dim = config.integer_option("expand") * config.width / config.heads,
          .convolution = true,
          .convolution_bias = true,
          .norm = false};
}

class Mamba2 final : public RecurrentMixer {
 public:
  Mamba2(const MixerConfig& config, Initialiser& initialiser)
      : RecurrentMixer(config, "mamba2", forms, ssd_parts(config), initialiser),
        gate_(width_, heads_ * parts_.value_dim, false, initialiser),
        dt_(width_, heads_, false, initialiser),
        A_log_(random_log_rates({heads_}, initialiser)),
        dt_bias_(random_step_biases({heads_}, initialiser)),
        D_(initialiser.constant({heads_}, 1)),
        norm_(initialiser.constant({heads_ * parts_.value_dim}, 1)) {
    declare("gate", gate_);
    declare("dt", dt_);
    declare("A_log", A_log_, Decay::no);
    declare("dt_bias", dt_bias_, Decay::no);
    declare("D", D_, Decay::no);
    declare("norm", norm_, Decay::no);
  }

  double flops_per_token(int64_t length) const override {
    return RecurrentMixer::flops_per_token(length) + state_size();  // which decays
  }

 private:
  Recurrence recur(const Operands& in) override {
    const Variable steps = dt_.forward(in.input.x);  // [B, T, H]
    const RecurrenceOptions options{.final_state = in.input.state != nullptr,
                                    .documents = in.input.documents};
    return ssd(in.v, softplus(add(steps, dt_bias_)), decay_gate(steps, A_log_, dt_bias_), in.k, in.q, D_,
               options, in.state);
  }

  /// Gated first, then normalised over the heads of each group.
  Variable finish(const Variable& o, const Variable& x) const override {
    const int64_t channels = heads_ * parts_.value_dim, groups = parts_.key_heads;
    const Shape grouped{x.shape()[0], x.shape()[1], groups, channels / groups};
    const Variable y = gated_rms_norm(reshape(o, grouped), reshape(gate_.forward(x), grouped), {},
                                      {.order = GateOrder::gate_first});
    return multiply(reshape(y, {x.shape()[0], x.shape()[1], channels}), norm_);
  }

  Linear gate_, dt_;
  Variable A_log_, dt_bias_, D_;  // [H]
  Variable norm_;                 // [H dv]
};

}  // namespace

MixerKind mamba2_mixer() {
  return {.name = "mamba2",
          .summary = "Mamba-2: a state space model whose heads decay at rates that tokens choose",
          .forms = forms,
          .options = {{"state", 128, 1, 1 << 16, true, "rows of a head's matrix: N"},
                      {"expand", 2, 1, 64, true, "size of all heads together, in widths"},
                      {"groups", 1, 0, 1 << 16, true,
                       "groups of heads, each with its own B and C; 0: as many as heads"}},
          .check_options = "state=5,expand=1,groups=2",
          .make = construct<Mamba2>};
}

}  // namespace mixgrad
