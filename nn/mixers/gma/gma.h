// Gaussian Mixture Attention: queries and keys are routed to K learned Gaussians, through which values are
// written and read. Derivation and references in gma.md.
#pragma once

#include "nn/layers.h"
#include "nn/mixer.h"
#include "nn/mixers/gma/mixture.h"

namespace mixgrad {

/// One mixture per head, shared by queries and keys: mean [H, K, dr], variance softplus(omega) + floor [H, K,
/// dr], prior softmax(alpha) [H, K]. Decodes with a state of K (dv + 1) numbers per head.
class Gma final : public Mixer {
 public:
  Gma(const MixerConfig& config, Initialiser& initialiser);

  MixerState initial_state(int64_t batch, int64_t capacity) const override;
  double flops_per_token(int64_t length) const override;

  Tensor key_responsibilities(const Variable& x) override;

 protected:
  Variable mix(const MixerInput& input) override;

 private:
  /// The routing vectors of a projection: [B, T, H, dr], normalised if so configured.
  Variable route(const Linear& projection, const Variable& x) const;

  const int64_t components_;
  const int64_t routing_;
  const int64_t head_size_;
  const bool normalise_;
  Linear q_, k_, v_, out_;
  GaussianMixture mixture_;
};

}  // namespace mixgrad
