// What the mixers of the delta rule have in common. Derivation in delta.md.
#pragma once

#include "nn/recurrent_mixer.h"

namespace mixgrad {

/// The options that delta_parts() reads.
std::vector<MixerOption> delta_size_options();

/// These and the largest rate, with its default.
std::vector<MixerOption> delta_options(double rate = 1);

/// The parts that the sizes ask for: short convolutions and normalised outputs, ungated.
RecurrentParts delta_parts(const MixerConfig& config, const std::string& mixer);

/// A matrix a head that is corrected by the delta rule, along keys of length 1 at rates that tokens choose.
class DeltaMixer : public RecurrentMixer {
 public:
  static constexpr MixerForms forms{.causal = true, .documents = true, .recorded_state = true};

  double flops_per_token(int64_t length) const override;

 protected:
  DeltaMixer(const MixerConfig& config, const std::string& name, const RecurrentParts& parts,
             Initialiser& initialiser);

  /// What is forgotten before a token's correction, [B, T, H] or [B, T, H, dk]; undefined: nothing.
  virtual Variable log_decay(const Variable&) const { return {}; }

 private:
  Recurrence recur(const Operands& in) override;

  const double rate_;
  Linear beta_;
};

}  // namespace mixgrad
