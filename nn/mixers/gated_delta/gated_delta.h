// The gated delta rule, for the mixers that are made of it.
#pragma once

#include "nn/mixers/delta/delta.h"

namespace mixgrad {

/// Its parts: those of the delta rule, and an output gate.
RecurrentParts gated_delta_parts(const MixerConfig& config, const std::string& name);

/// The delta rule with a log decay for each head, and an output gate.
class GatedDelta : public DeltaMixer {
 public:
  GatedDelta(const MixerConfig& config, Initialiser& initialiser)
      : GatedDelta(config, "gated_delta", gated_delta_parts(config, "gated_delta"), initialiser) {}

  double flops_per_token(int64_t length) const override;

 protected:
  GatedDelta(const MixerConfig& config, const std::string& name, const RecurrentParts& parts,
             Initialiser& initialiser);

 private:
  Variable log_decay(const Variable& x) const override { return decay_.forward(x); }

  DecayGate decay_;
};

}  // namespace mixgrad
