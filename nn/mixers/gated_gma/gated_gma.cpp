// Gaussian Mixture Attention that forgets: slots with a decay, a short convolution before and a gate behind.
// Derivation in gated_gma.md.
#include "autograd/ops/elementwise.h"
#include "autograd/ops/gmm.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/recurrence.h"
#include "nn/layers.h"
#include "nn/mixer.h"
#include "nn/mixers/gma/mixture.h"

namespace mixgrad {

namespace {

const MixerForms forms{.causal = true, .documents = true};

/// Decodes with a state of K dv numbers a head, and the last three tokens of each convolution.
class GatedGma final : public Mixer {
 public:
  GatedGma(const MixerConfig& config, Initialiser& initialiser)
      : Mixer(config, "gated_gma", forms),
        components_(config.integer_option("components")),
        routing_(config.integer_option("routing")),
        head_size_(config.width / config.heads),
        q_(config.width, config.heads * routing_, false, initialiser),
        k_(config.width, config.heads * routing_, false, initialiser),
        v_(config.width, config.width, false, initialiser),
        gate_(config.width, config.width, false, initialiser),
        decay_(config.width, config.heads, initialiser),
        out_(config.width, config.width, false, initialiser),
        q_conv_(config.heads * routing_, initialiser),
        k_conv_(config.heads * routing_, initialiser),
        v_conv_(config.width, initialiser),
        mixture_(config, initialiser),
        norm_(initialiser.constant({head_size_}, 1)) {
    declare("q", q_);
    declare("k", k_);
    declare("v", v_);
    declare("gate", gate_);
    declare("decay", decay_);
    declare("out", out_);
    declare("q_conv", q_conv_);
    declare("k_conv", k_conv_);
    declare("v_conv", v_conv_);
    declare("mean", mixture_.mean, Decay::no);
    declare("omega", mixture_.omega, Decay::no);
    declare("alpha", mixture_.alpha, Decay::no);
    declare("norm", norm_, Decay::no);
  }

  MixerState initial_state(int64_t batch, int64_t) const override {
    const Tensor& like = norm_.value();
    MixerState state;
    state.tensors = {Tensor::zeros({batch, heads_, components_, head_size_}, like.dtype(), like.device()),
                     q_conv_.empty_tail(batch), k_conv_.empty_tail(batch), v_conv_.empty_tail(batch)};
    return state;
  }

  Tensor key_responsibilities(const Variable& x) override {
    const NoGrad no_grad;
    const GmmParameters mixture = gmm_parameters(mixture_.omega, mixture_.alpha, 1e-4);
    return posterior(mixture, k_conv_.forward(k_.forward(x), nullptr)).value();
  }

  double flops_per_token(int64_t) const override {
    // Routing of query and key, decay, write and read of the slots, convolutions; whatever the length.
    const auto slots = static_cast<double>(heads_ * components_);
    const auto convolved = static_cast<double>(2 * heads_ * routing_ + width_);
    return slots * static_cast<double>(6 * routing_ + 5 * head_size_) + 2 * ShortConv::taps * convolved;
  }

 protected:
  Variable mix(const MixerInput& input) override {
    const Variable& x = input.x;
    const Shape head_shape{x.shape()[0], x.shape()[1], heads_, head_size_};
    MixerState* state = input.state;
    const auto tensor = [&](int index) { return state != nullptr ? &state->tensors[index] : nullptr; };

    const GmmParameters mixture = gmm_parameters(mixture_.omega, mixture_.alpha, 1e-4);
    const Variable q =
        features(mixture, q_conv_.forward(q_.forward(x), tensor(1), input.documents));  // [B, T, H, K]
    const Variable k =
        features(mixture, k_conv_.forward(k_.forward(x), tensor(2), input.documents));  // [B, T, H, K]
    const Variable v = reshape(v_conv_.forward(v_.forward(x), tensor(3), input.documents), head_shape);
    const Variable log_decay = decay_.forward(x);  // [B, T, H]
    const Variable slots = state != nullptr ? Variable(*tensor(0)) : Variable();
    const RecurrenceOptions options{.final_state = state != nullptr, .documents = input.documents};
    const Recurrence read = recurrence(q, k, v, options, log_decay, slots);
    if (state != nullptr) {
      *tensor(0) = read.state.value();
      state->position += x.shape()[1];
    }
    const Variable gate = reshape(gate_.forward(x), head_shape);
    return out_.forward(reshape(gated_rms_norm(read.output, gate, norm_), x.shape()));
  }

 private:
  /// Responsibilities for routing vectors that are not normalised yet.
  Variable posterior(const GmmParameters& mixture, const Variable& routed) const {
    const Shape shape{routed.shape()[0], routed.shape()[1], heads_, routing_};
    const Variable on_sphere = rms_norm(reshape(routed, shape));
    return gmm_posterior(on_sphere, mixture_.mean, mixture.variance, mixture.log_prior);
  }

  /// The same with length 1.
  Variable features(const GmmParameters& mixture, const Variable& routed) const {
    return l2_normalize(posterior(mixture, routed));
  }

  const int64_t components_;
  const int64_t routing_;
  const int64_t head_size_;
  Linear q_, k_, v_, gate_;
  DecayGate decay_;
  Linear out_;
  ShortConv q_conv_, k_conv_, v_conv_;
  GaussianMixture mixture_;
  Variable norm_;
};

}  // namespace

MixerKind gated_gma_mixer() {
  return {.name = "gated_gma",
          .summary = "Gaussian Mixture Attention that forgets, with short convolutions and an output gate",
          .forms = forms,
          .options = {components_option, routing_option, sharpness_option},
          .check_options = "components=5,routing=3",
          .make = [](const MixerConfig& config, Initialiser& initialiser) -> std::unique_ptr<Mixer> {
            return std::make_unique<GatedGma>(config, initialiser);
          }};
}

}  // namespace mixgrad
