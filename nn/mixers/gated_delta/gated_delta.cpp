// The gated delta rule: a memory that is corrected, and that forgets. Derivation in gated_delta.md.
#include "autograd/ops/elementwise.h"
#include "autograd/ops/norm.h"
#include "nn/mixers/delta/delta.h"

namespace mixgrad {

namespace {

const MixerForms forms{.causal = true, .documents = true};

class GatedDelta final : public DeltaMixer {
 public:
  GatedDelta(const MixerConfig& config, Initialiser& initialiser)
      : DeltaMixer(config, "gated_delta", forms, initialiser),
        decay_(width_, heads_, initialiser),
        gate_(width_, heads_ * value_dim_, false, initialiser),
        out_(heads_ * value_dim_, width_, false, initialiser),
        norm_(initialiser.constant({value_dim_}, 1)) {
    declare("decay", decay_);
    declare("gate", gate_);
    declare("out", out_);
    declare("norm", norm_, Decay::no);
  }

  double flops_per_token(int64_t length) const override {
    const auto decayed = static_cast<double>(heads_ * key_dim_ * value_dim_);
    return DeltaMixer::flops_per_token(length) + decayed;
  }

 protected:
  Variable mix(const MixerInput& input) override {
    const Variable o = read(input, decay_.forward(input.x));  // [B, T, H, dv]
    const Variable gate = gate_.forward(input.x);             // [B, T, H dv]
    return out_.forward(reshape(gated_rms_norm(o, reshape(gate, o.shape()), norm_), gate.shape()));
  }

 private:
  DecayGate decay_;
  Linear gate_, out_;
  Variable norm_;
};

}  // namespace

MixerKind gated_delta_mixer() {
  return {.name = "gated_delta",
          .summary = "gated DeltaNet: the delta rule with a decay a head and an output gate",
          .forms = forms,
          .options = delta_options(),
          .check_options = "key_heads=1,key_dim=3,value_dim=5",
          .make = [](const MixerConfig& config, Initialiser& initialiser) -> std::unique_ptr<Mixer> {
            return std::make_unique<GatedDelta>(config, initialiser);
          }};
}

}  // namespace mixgrad
