// What the mixers of linear attention have in common. Derivation in linear.md.
#pragma once

#include "nn/recurrent_mixer.h"

namespace mixgrad {

/// Keys, mapped to features, add their values to a matrix a head, which the features of queries read; in all
/// forms. A masked key writes nothing.
class LinearMixer : public RecurrentMixer {
 public:
  static constexpr MixerForms forms{.causal = true,
                                    .bidirectional = true,
                                    .cross = true,
                                    .key_mask = true,
                                    .documents = true,
                                    .recorded_state = true};

  /// As many heads of keys as of values, each of width / heads.
  static RecurrentParts parts(const MixerConfig& config);

 protected:
  /// `scale` multiplies what is read.
  LinearMixer(const MixerConfig& config, const std::string& name, const RecurrentParts& parts, double scale,
              Initialiser& initialiser);

  /// [B, T, H, key_dim] -> [B, T, H, dk]
  virtual Variable features(const Variable& x) const = 0;

 private:
  Recurrence recur(const Operands& in) override;

  const double scale_;
};

}  // namespace mixgrad
