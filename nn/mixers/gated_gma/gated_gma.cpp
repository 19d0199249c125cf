// Gaussian Mixture Attention that forgets: slots with a decay, a short convolution before and a gate behind.
// Derivation in gated_gma.md.
#include "autograd/ops/elementwise.h"
#include "nn/mixers/gma/mixture.h"
#include "nn/recurrent_mixer.h"

namespace mixgrad {

namespace {

const MixerForms forms{.causal = true, .documents = true, .recorded_state = true};

/// What keeps the scale of an output while slots fill up; only one of these at a time.
enum class Read {
  plain,       // q_t S_t, divided by its root mean square
  normalised,  // q_t S_t / (q_t . z_t + eps), a mean of values
  slots        // sum over k of q_tk S_tk / (z_tk + eps), a mean of the slots' means
};

constexpr double read_eps = 1e-6;

Read read_option(const MixerConfig& config) { return static_cast<Read>(config.integer_option("read")); }

RecurrentParts gated_parts(const MixerConfig& config) {
  const bool plain = read_option(config) == Read::plain;
  return {.key_heads = config.heads,
          .key_dim = config.integer_option("routing"),
          .value_dim = config.width / config.heads,
          .features = config.integer_option("components"),
          .normaliser = !plain,
          .convolution = true,
          .norm = plain,
          .gate = GateFunction::silu};
}

/// The rows of the matrices are slots, one for each component of the mixture.
class GatedGma final : public RecurrentMixer {
 public:
  GatedGma(const MixerConfig& config, Initialiser& initialiser)
      : RecurrentMixer(config, "gated_gma", forms, gated_parts(config), initialiser),
        read_(read_option(config)),
        decay_(width_, heads_, initialiser),
        mixture_(config, initialiser) {
    check_usage(config.option("delta") == 0 || read_ == Read::plain, "[gated_gma] delta 1 with read ",
                config.option("read"), "; allowed: read 0: what is corrected has no weights to divide by");
    declare("decay", decay_);
    declare("mean", mixture_.mean, Decay::no);
    declare("omega", mixture_.omega, Decay::no);
    declare("alpha", mixture_.alpha, Decay::no);
    if (config.option("delta") != 0) declare("beta", beta_.emplace(width_, heads_, false, initialiser));
  }

  double flops_per_token(int64_t length) const override {
    // Routing of query and key, the decay of the slots, and what they answer to the keys.
    const auto routed = static_cast<double>(heads_ * parts_.features * parts_.key_dim);
    return RecurrentMixer::flops_per_token(length) + 6 * routed + (beta_ ? 3 : 1) * state_size();
  }

  Tensor key_responsibilities(const Variable& x) override {
    const NoGrad no_grad;
    return posterior(mixture_.parameters(), keys(x)).value();
  }

 private:
  Recurrence recur(const Operands& in) override {
    const GmmParameters mixture = mixture_.parameters();
    const Variable q = posterior(mixture, in.q), k = posterior(mixture, in.k);  // [B, T, H, K]
    const Variable log_decay = decay_.forward(in.input.x);                      // [B, T, H]
    if (read_ == Read::slots) return read_slots(q, k, log_decay, in);
    if (beta_) return corrected(l2_normalize(q), l2_normalize(k), log_decay, in);
    RecurrenceOptions options = recurrence_options(in);
    if (read_ == Read::plain)
      return recurrence(l2_normalize(q), l2_normalize(k), in.v, options, log_decay, in.state);
    options.normalise = true;
    options.eps = read_eps;
    return recurrence(q, k, in.v, options, log_decay, in.state, in.normaliser);
  }

  /// Each slot gives the mean of what was written to it. The masses z_t = e^{g_t} z_{t-1} + k_t are a
  /// recurrence, too: its values are the responsibilities, and its only key is 1.
  Recurrence read_slots(const Variable& q, const Variable& k, const Variable& log_decay,
                        const Operands& in) const {
    const RecurrenceOptions options = recurrence_options(in);
    const int64_t batch = k.shape()[0], length = k.shape()[1], components = parts_.features;
    const Variable one(Tensor::full({batch, length, heads_, 1}, 1, k.dtype(), k.value().device()));
    const Variable before =
        in.normaliser.defined() ? reshape(in.normaliser, {batch, heads_, 1, components}) : Variable();
    const Recurrence masses = recurrence(one, one, k, options, log_decay, before);
    const Variable shares = multiply(q, reciprocal(add_scalar(masses.output, read_eps)));
    Recurrence read = recurrence(shares, k, in.v, options, log_decay, in.state);
    if (options.final_state) read.normaliser = reshape(masses.state, {batch, heads_, components});
    return read;
  }

  /// A token takes from its slots what they would answer to it, and writes its value in that place.
  Recurrence corrected(const Variable& q, const Variable& k, const Variable& log_decay,
                       const Operands& in) const {
    const Variable beta = sigmoid(beta_->forward(in.input.x));
    return delta_rule(q, k, in.v, beta,
                      {.final_state = in.input.state != nullptr, .documents = in.input.documents}, log_decay,
                      in.state);
  }

  static RecurrenceOptions recurrence_options(const Operands& in) {
    return {.final_state = in.input.state != nullptr, .documents = in.input.documents};
  }

  /// Responsibilities for routing vectors that are not normalised yet.
  Variable posterior(const GmmParameters& mixture, const Variable& routed) const {
    return gmm_posterior(rms_norm(routed), mixture_.mean, mixture);
  }

  const Read read_;
  DecayGate decay_;
  GaussianMixture mixture_;
  std::optional<Linear> beta_;
};

}  // namespace

MixerKind gated_gma_mixer() {
  return {.name = "gated_gma",
          .summary = "Gaussian Mixture Attention that forgets, with short convolutions and an output gate",
          .forms = forms,
          .options = {components_option,
                      {"routing", 32, 1, 1 << 16, true, routing_option.help},
                      sharpness_option,
                      {"read", 0, 0, 2, true,
                       "0: outputs are RMS-normalised; 1: divided by their weights' sum; 2: slot by slot"},
                      {"delta", 0, 0, 1, true, "1: a token corrects its slots instead of adding to them"}},
          .check_options = "components=5,routing=3",
          .causal_check_options = {"components=5,routing=3,read=1", "components=5,routing=3,read=2",
                                   "components=5,routing=3,delta=1"},
          .make = construct<GatedGma>};
}

}  // namespace mixgrad
