// Gaussian Mixture Attention: queries and keys are routed to K learned Gaussians, through which values are
// written and read. Derivation and references in gma.md.
#include "autograd/ops/gma.h"

#include "nn/mixers/gma/mixture.h"
#include "nn/recurrent_mixer.h"

namespace mixgrad {

namespace {

const MixerForms forms{.causal = true,
                       .bidirectional = true,
                       .cross = true,
                       .key_mask = true,
                       .documents = true,
                       .recorded_state = true};

RecurrentParts mixture_parts(const MixerConfig& config) {
  return {.key_heads = config.heads,
          .key_dim = config.integer_option("routing"),
          .value_dim = config.width / config.heads,
          .features = config.integer_option("components"),
          .normaliser = true,
          .norm = false};
}

/// One mixture per head, shared by queries and keys. The rows of the matrices are slots, one for each
/// component.
class Gma final : public RecurrentMixer {
 public:
  Gma(const MixerConfig& config, Initialiser& initialiser)
      : RecurrentMixer(config, "gma", forms, mixture_parts(config), initialiser),
        normalise_(config.option("normalise") != 0),
        mixture_(config, initialiser) {
    declare("mean", mixture_.mean, Decay::no);
    declare("omega", mixture_.omega, Decay::no);
    declare("alpha", mixture_.alpha, Decay::no);
  }

  double flops_per_token(int64_t length) const override {
    const auto routed = static_cast<double>(heads_ * parts_.features * parts_.key_dim);
    return RecurrentMixer::flops_per_token(length) + 6 * routed;  // query and key
  }

  Tensor key_responsibilities(const Variable& x) override {
    const NoGrad no_grad;
    return gmm_posterior(routed(keys(x)), mixture_.mean, mixture_.parameters()).value();
  }

 private:
  Recurrence recur(const Operands& in) override {
    const GmaOptions options{
        .causal = in.input.causal, .final_state = in.input.state != nullptr, .documents = in.input.documents};
    return gma(routed(in.q), routed(in.k), in.v, mixture_.mean, mixture_.parameters(), options,
               in.input.key_mask, in.state, in.normaliser);
  }

  /// The routing vectors of projected queries or keys.
  Variable routed(const Variable& x) const { return normalise_ ? rms_norm(x) : x; }

  const bool normalise_;
  GaussianMixture mixture_;
};

}  // namespace

MixerKind gma_mixer() {
  return {
      .name = "gma",
      .summary = "Gaussian Mixture Attention: a fixed number of learned slots, linear in length",
      .forms = forms,
      .options = {components_option,
                  routing_option,
                  {"normalise", 1, 0, 1, true, "1: routing vectors have root mean square 1; 0: as they are"},
                  sharpness_option},
      .check_options = "components=5,routing=3",
      .make = construct<Gma>};
}

}  // namespace mixgrad
