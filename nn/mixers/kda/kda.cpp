// Kimi Delta Attention: the delta rule with a decay for each channel of the keys. Derivation in kda.md.
#include "autograd/ops/decay_gate.h"
#include "autograd/ops/elementwise.h"
#include "nn/mixers/delta/delta.h"

namespace mixgrad {

namespace {

RecurrentParts kda_parts(const MixerConfig& config) {
  RecurrentParts parts = delta_parts(config, "kda");
  parts.gate = GateFunction::sigmoid;
  parts.gate_rank = parts.value_dim;
  return parts;
}

class Kda final : public DeltaMixer {
 public:
  Kda(const MixerConfig& config, Initialiser& initialiser)
      : DeltaMixer(config, "kda", kda_parts(config), initialiser),
        decay_down_(width_, parts_.value_dim, false, initialiser),
        decay_up_(parts_.value_dim, heads_ * parts_.key_dim, false, initialiser),
        A_log_(random_log_rates({heads_}, initialiser)),
        dt_bias_(random_step_biases({heads_, parts_.key_dim}, initialiser)) {
    declare("decay_down", decay_down_);
    declare("decay_up", decay_up_);
    declare("A_log", A_log_, Decay::no);
    declare("dt_bias", dt_bias_, Decay::no);
  }

  double flops_per_token(int64_t length) const override {
    return DeltaMixer::flops_per_token(length) + state_size();  // which decays
  }

 private:
  Variable log_decay(const Variable& x) const override {
    const Variable steps = decay_up_.forward(decay_down_.forward(x));
    return decay_gate(reshape(steps, {x.shape()[0], x.shape()[1], heads_, parts_.key_dim}), A_log_, dt_bias_);
  }

  Linear decay_down_, decay_up_;
  Variable A_log_;    // [H]
  Variable dt_bias_;  // [H, dk]
};

}  // namespace

MixerKind kda_mixer() {
  return {.name = "kda",
          .summary = "Kimi Delta Attention: the delta rule with a decay for each channel of the keys",
          .forms = DeltaMixer::forms,
          .options = delta_options(),
          .check_options = "key_heads=1,key_dim=3,value_dim=5",
          .make = construct<Kda>};
}

}  // namespace mixgrad
