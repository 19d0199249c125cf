// The gated delta rule: a memory that is corrected, and that forgets. Derivation in gated_delta.md.
#include "nn/mixers/delta/delta.h"

namespace mixgrad {

namespace {

RecurrentParts gated_parts(const MixerConfig& config) {
  RecurrentParts parts = delta_parts(config, "gated_delta");
  parts.gate = GateFunction::silu;
  return parts;
}

class GatedDelta final : public DeltaMixer {
 public:
  GatedDelta(const MixerConfig& config, Initialiser& initialiser)
      : DeltaMixer(config, "gated_delta", gated_parts(config), initialiser),
        decay_(width_, heads_, initialiser) {
    declare("decay", decay_);
  }

  double flops_per_token(int64_t length) const override {
    return DeltaMixer::flops_per_token(length) + state_size();  // which decays
  }

 private:
  Variable log_decay(const Variable& x) const override { return decay_.forward(x); }

  DecayGate decay_;
};

}  // namespace

MixerKind gated_delta_mixer() {
  return {.name = "gated_delta",
          .summary = "gated DeltaNet: the delta rule with a decay a head and an output gate",
          .forms = DeltaMixer::forms,
          .options = delta_options(),
          .check_options = "key_heads=1,key_dim=3,value_dim=5",
          .make = construct<GatedDelta>};
}

}  // namespace mixgrad
