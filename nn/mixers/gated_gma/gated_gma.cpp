// Gaussian Mixture Attention that forgets: slots with a decay, a short convolution before and a gate behind.
// Derivation in gated_gma.md.
#include "autograd/ops/gmm.h"
#include "nn/mixers/gma/mixture.h"
#include "nn/recurrent_mixer.h"

namespace mixgrad {

namespace {

const MixerForms forms{.causal = true, .documents = true, .recorded_state = true};

RecurrentParts gated_parts(const MixerConfig& config) {
  return {.key_heads = config.heads,
          .key_dim = config.integer_option("routing"),
          .value_dim = config.width / config.heads,
          .features = config.integer_option("components"),
          .convolution = true,
          .gate = GateFunction::silu};
}

/// The rows of the matrices are slots, one for each component of the mixture.
class GatedGma final : public RecurrentMixer {
 public:
  GatedGma(const MixerConfig& config, Initialiser& initialiser)
      : RecurrentMixer(config, "gated_gma", forms, gated_parts(config), initialiser),
        decay_(width_, heads_, initialiser),
        mixture_(config, initialiser) {
    declare("decay", decay_);
    declare("mean", mixture_.mean, Decay::no);
    declare("omega", mixture_.omega, Decay::no);
    declare("alpha", mixture_.alpha, Decay::no);
  }

  double flops_per_token(int64_t length) const override {
    // Routing of query and key, and the decay of the slots.
    const auto routed = static_cast<double>(heads_ * parts_.features * parts_.key_dim);
    return RecurrentMixer::flops_per_token(length) + 6 * routed + state_size();
  }

  Tensor key_responsibilities(const Variable& x) override {
    const NoGrad no_grad;
    return posterior(gmm_parameters(mixture_.omega, mixture_.alpha, 1e-4), keys(x)).value();
  }

 private:
  Recurrence recur(const Operands& in) override {
    const GmmParameters mixture = gmm_parameters(mixture_.omega, mixture_.alpha, 1e-4);
    const RecurrenceOptions options{.final_state = in.input.state != nullptr,
                                    .documents = in.input.documents};
    return recurrence(l2_normalize(posterior(mixture, in.q)), l2_normalize(posterior(mixture, in.k)), in.v,
                      options, decay_.forward(in.input.x), in.state);
  }

  /// Responsibilities for routing vectors that are not normalised yet.
  Variable posterior(const GmmParameters& mixture, const Variable& routed) const {
    return gmm_posterior(rms_norm(routed), mixture_.mean, mixture.variance, mixture.log_prior);
  }

  DecayGate decay_;
  GaussianMixture mixture_;
};

}  // namespace

MixerKind gated_gma_mixer() {
  return {.name = "gated_gma",
          .summary = "Gaussian Mixture Attention that forgets, with short convolutions and an output gate",
          .forms = forms,
          .options = {components_option, routing_option, sharpness_option},
          .check_options = "components=5,routing=3",
          .make = construct<GatedGma>};
}

}  // namespace mixgrad
