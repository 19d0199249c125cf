// The Gaussian mixtures that tokens are routed to: what the mixers made of them have in common.
#pragma once

#include "autograd/kept.h"
#include "autograd/ops/gmm.h"
#include "nn/mixer.h"

namespace mixgrad {

inline const MixerOption components_option{"components", 64, 1, 1 << 16, true, "Gaussians per head: K"};
inline const MixerOption routing_option{"routing", 16, 1, 1 << 16, true, "size of the routing vectors: dr"};
inline const MixerOption sharpness_option{
    "sharpness", 2, 1e-3, 1e3, false, "spread of the scores at the start; larger is more peaked"};

/// K Gaussians a head, in a space of dr dimensions, for queries and keys alike.
class GaussianMixture {
 public:
  Variable mean;   // [H, K, dr]
  Variable omega;  // [H, K, dr]; the variance is softplus(omega) + 1e-4
  Variable alpha;  // [H, K]; the prior is softmax(alpha)

  /// Sizes and sharpness are the config's options. Means start on the sphere where RMS-normalised vectors
  /// live, variances where the scores of two components spread by `sharpness`, priors equal.
  GaussianMixture(const MixerConfig& config, Initialiser& initialiser);

  /// What gmm_posterior() takes beside the means; prepared where no ops are recorded.
  GmmParameters parameters();

 private:
  Kept<GmmParameters> parameters_;
};

}  // namespace mixgrad
