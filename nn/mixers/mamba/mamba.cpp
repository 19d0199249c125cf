// Mamba: a selective state space model of which each channel has a state of its own. Derivation in mamba.md.
#include <cmath>

#include "autograd/kept.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/scan.h"
#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {

namespace {

const MixerForms forms{.causal = true, .documents = true, .recorded_state = true};

/// Heads play no role in it. Decodes with the states and the last three tokens of the convolution.
class Mamba final : public Mixer {
 public:
  Mamba(const MixerConfig& config, Initialiser& initialiser)
      : Mixer(config, "mamba", forms),
        channels_(config.integer_option("expand") * width_),
        states_(config.integer_option("state")),
        rank_(config.size_option("step_rank", (width_ + 15) / 16)),
        x_(width_, channels_, false, initialiser),
        gate_(width_, channels_, false, initialiser),
        conv_(channels_, initialiser, true),
        step_down_(channels_, rank_, false, initialiser),
        B_(channels_, states_, false, initialiser),
        C_(channels_, states_, false, initialiser),
        step_up_(initialiser.values(step_weights(initialiser.generator()))),
        step_bias_(random_step_biases({channels_}, initialiser)),
        A_log_(initialiser.values(log_rates())),
        D_(initialiser.constant({channels_}, 1)),
        out_(channels_, width_, false, initialiser) {
    declare("x", x_);
    declare("gate", gate_);
    declare("conv", conv_);
    declare("step_down", step_down_);
    declare("B", B_);
    declare("C", C_);
    declare("step_up", step_up_, Decay::yes);
    declare("step_bias", step_bias_, Decay::no);
    declare("A_log", A_log_, Decay::no);
    declare("D", D_, Decay::no);
    declare("out", out_);
  }

  MixerState initial_state(int64_t batch, int64_t) const override {
    const Tensor& like = D_.value();
    MixerState state;
    state.tensors = {Tensor::zeros({batch, channels_, states_}, like.dtype(), like.device()),
                     conv_.empty_tail(batch)};
    return state;
  }

  double flops_per_token(int64_t) const override {
    const auto channels = static_cast<double>(channels_);
    return channels * (7 * static_cast<double>(states_) + 2 * ShortConv::taps);
  }

 protected:
  Variable mix(const MixerInput& input) override {
    MixerState* const state = input.state;
    const Variable u = conv_.forward(x_.forward(input.x), state != nullptr ? &state->tensors[1] : nullptr,
                                     input.documents);  // [B, T, di]
    const Variable delta = softplus(linear(step_down_.forward(u), step_up_, step_bias_));
    const Variable A = A_.get({A_log_}, [&] { return scale(exp(A_log_), -1); });
    const Variable before = state != nullptr ? Variable(state->tensors[0]) : Variable();
    const Scan scan = selective_scan(u, delta, A, B_.forward(u), C_.forward(u), D_, before, state != nullptr,
                                     input.documents);
    if (state != nullptr) {
      state->tensors[0] = scan.state.value();
      state->position += input.x.shape()[1];
    }
    return out_.forward(swiglu(gate_.forward(input.x), scan.output));
  }

 private:
  /// Uniform between -1 / sqrt(R) and 1 / sqrt(R), which keeps the scale of what passes: [di, R].
  Tensor step_weights(Generator& generator) const {
    const double bound = 1 / std::sqrt(static_cast<double>(rank_));
    return uniform({channels_, rank_}, -bound, bound, generator, DType::float64);
  }

  /// The logarithms of 1, 2, 3 ... for every channel: [di, N].
  Tensor log_rates() const {
    std::vector<double> logs(channels_ * states_);
    for (int64_t i = 0; i < channels_ * states_; ++i) {
      logs[i] = std::log(static_cast<double>(i % states_ + 1));
    }
    return Tensor::from(logs, {channels_, states_});
  }

  const int64_t channels_;  // di
  const int64_t states_;    // N
  const int64_t rank_;      // R
  Linear x_, gate_;
  ShortConv conv_;
  Linear step_down_, B_, C_;
  Variable step_up_;    // [di, R]
  Variable step_bias_;  // [di]
  Variable A_log_;      // [di, N]
  Kept<Variable> A_;    // -exp(A_log)
  Variable D_;          // [di]
  Linear out_;
};

}  // namespace

MixerKind mamba_mixer() {
  return {.name = "mamba",
          .summary = "Mamba: a state space model that decides by itself what each channel keeps",
          .forms = forms,
          .options = {{"state", 16, 1, 1 << 16, true, "numbers that each channel keeps: N"},
                      {"expand", 2, 1, 64, true, "channels, in widths"},
                      {"step_rank", 0, 0, 1 << 16, true,
                       "numbers that the step sizes are computed from; 0: width / 16, rounded up"}},
          .check_options = "state=3,expand=2,step_rank=2",
          .make = construct<Mamba>};
}

}  // namespace mixgrad
