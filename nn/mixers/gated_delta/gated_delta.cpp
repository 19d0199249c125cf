// The gated delta rule: a memory that is corrected, and that forgets. Derivation in gated_delta.md.
#include "nn/mixers/gated_delta/gated_delta.h"

namespace mixgrad {

RecurrentParts gated_delta_parts(const MixerConfig& config, const std::string& name) {
  RecurrentParts parts = delta_parts(config, name);
  parts.gate = GateFunction::silu;
  return parts;
}

GatedDelta::GatedDelta(const MixerConfig& config, const std::string& name, const RecurrentParts& parts,
                       Initialiser& initialiser)
    : DeltaMixer(config, name, parts, initialiser), decay_(width_, heads_, initialiser) {
  declare("decay", decay_);
}

double GatedDelta::flops_per_token(int64_t length) const {
  return DeltaMixer::flops_per_token(length) + state_size();  // which decays
}

MixerKind gated_delta_mixer() {
  return {.name = "gated_delta",
          .summary = "gated DeltaNet: the delta rule with a decay a head and an output gate",
          .forms = DeltaMixer::forms,
          .options = delta_options(),
          .check_options = "key_heads=1,key_dim=3,value_dim=5",
          .make = construct<GatedDelta>};
}

}  // namespace mixgrad
