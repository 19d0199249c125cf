// What the mixers of the delta rule have in common. Derivation in delta.md.
#pragma once

#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {

/// The options of these mixers.
std::vector<MixerOption> delta_options();

/// A matrix a head that short convolutions of x write and read by the delta rule. Decodes with dk dv numbers
/// a head, and the last three tokens of each convolution.
class DeltaMixer : public Mixer {
 public:
  MixerState initial_state(int64_t batch, int64_t capacity) const override;
  double flops_per_token(int64_t length) const override;

 protected:
  /// Declares q, k, v and beta with the convolutions behind them. Throws UsageError unless the key heads
  /// divide the heads.
  DeltaMixer(const MixerConfig& config, const std::string& name, const MixerForms& forms,
             Initialiser& initialiser);

  /// What the queries read, [B, T, H, dv]. log_decay [B, T, H]; undefined: nothing is forgotten.
  Variable read(const MixerInput& input, const Variable& log_decay);

  const int64_t key_heads_;  // Hk
  const int64_t key_dim_;    // dk
  const int64_t value_dim_;  // dv

 private:
  const double rate_;
  Linear q_, k_, v_, beta_;
  ShortConv q_conv_, k_conv_, v_conv_;
};

}  // namespace mixgrad
