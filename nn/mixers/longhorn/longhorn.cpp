// Longhorn: a memory whose every write is the exact solution of a small regression. Derivation in
// longhorn.md.
#include "autograd/ops/longhorn.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "nn/mixers/delta/delta.h"

namespace mixgrad {

namespace {

RecurrentParts longhorn_parts(const MixerConfig& config) {
  RecurrentParts parts = delta_parts(config, "longhorn");
  parts.gate = GateFunction::silu;
  return parts;
}

/// Keys need no normalisation: the step is stable for any length.
class Longhorn final : public RecurrentMixer {
 public:
  Longhorn(const MixerConfig& config, Initialiser& initialiser)
      : RecurrentMixer(config, "longhorn", DeltaMixer::forms, longhorn_parts(config), initialiser),
        beta_(width_, heads_, false, initialiser) {
    declare("beta", beta_);
  }

  double flops_per_token(int64_t length) const override {
    return RecurrentMixer::flops_per_token(length) + 2 * state_size();  // what the state answers to the key
  }

 private:
  Recurrence recur(const Operands& in) override {
    const DeltaRuleOptions options{.scale = 1 / std::sqrt(static_cast<double>(parts_.key_dim)),
                                   .final_state = in.input.state != nullptr,
                                   .documents = in.input.documents};
    return longhorn(in.q, in.k, in.v, sigmoid(beta_.forward(in.input.x)), options, in.state);
  }

  Linear beta_;
};

}  // namespace

MixerKind longhorn_mixer() {
  return {.name = "longhorn",
          .summary = "Longhorn: each write solves for the nearest state that gives its value",
          .forms = DeltaMixer::forms,
          .options = delta_size_options(),
          .check_options = "key_heads=1,key_dim=3,value_dim=5",
          .make = construct<Longhorn>};
}

}  // namespace mixgrad
