// Linear attention without a normaliser: a matrix that keys write values into and queries read. Derivation in
// linear.md.
#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/recurrence.h"
#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {

namespace {

const MixerForms forms{
    .causal = true, .bidirectional = true, .cross = true, .key_mask = true, .documents = true};

/// Decodes with a state of d^2 numbers a head.
class LinearAttention final : public Mixer {
 public:
  LinearAttention(const MixerConfig& config, Initialiser& initialiser)
      : Mixer(config, "linear", forms),
        head_size_(config.width / config.heads),
        silu_(config.option("silu") != 0),
        q_(config.width, config.width, false, initialiser),
        k_(config.width, config.width, false, initialiser),
        v_(config.width, config.width, false, initialiser),
        out_(config.width, config.width, false, initialiser),
        norm_(initialiser.constant({head_size_}, 1)) {
    declare("q", q_);
    declare("k", k_);
    declare("v", v_);
    declare("out", out_);
    declare("norm", norm_, Decay::no);
  }

  MixerState initial_state(int64_t batch, int64_t) const override {
    const Tensor& like = norm_.value();
    MixerState state;
    state.tensors = {Tensor::zeros({batch, heads_, head_size_, head_size_}, like.dtype(), like.device())};
    return state;
  }

  double flops_per_token(int64_t) const override {
    return 4.0 * static_cast<double>(width_ * head_size_);  // write and read, whatever the length
  }

 protected:
  Variable mix(const MixerInput& input) override {
    const Variable& source = input.context.defined() ? input.context : input.x;
    // Masked by selection: 0 times a value that is not finite would still be written.
    const auto masked = [&](const Variable& x) {
      return input.key_mask.defined() ? mask_rows(x, input.key_mask) : x;
    };
    const Variable q = heads(features(q_.forward(input.x)));         // [B, T, H, d]
    const Variable k = heads(masked(features(k_.forward(source))));  // [B, Tk, H, d]
    const Variable v = heads(masked(v_.forward(source)));
    const RecurrenceOptions options{.causal = input.causal,
                                    .scale = 1 / std::sqrt(static_cast<double>(head_size_)),
                                    .final_state = input.state != nullptr,
                                    .documents = input.documents};
    const Variable state = input.state != nullptr ? Variable(input.state->tensors[0]) : Variable();
    const Recurrence read = recurrence(q, k, v, options, {}, state);
    if (input.state != nullptr) {
      input.state->tensors = {read.state.value()};
      input.state->position += input.x.shape()[1];
    }
    return out_.forward(reshape(rms_norm(read.output, norm_), input.x.shape()));
  }

 private:
  Variable features(const Variable& x) const { return silu_ ? silu(x) : x; }
  Variable heads(const Variable& x) const {
    return reshape(x, {x.shape()[0], x.shape()[1], heads_, head_size_});
  }

  const int64_t head_size_;
  const bool silu_;
  Linear q_, k_, v_, out_;
  Variable norm_;
};

}  // namespace

MixerKind linear_mixer() {
  return {.name = "linear",
          .summary = "linear attention: a matrix state that only adds, normalised as it is read",
          .forms = forms,
          .options = {{"silu", 1, 0, 1, true, "1: queries and keys pass through silu; 0: as they are"}},
          .check_options = "silu=0",
          .make = [](const MixerConfig& config, Initialiser& initialiser) -> std::unique_ptr<Mixer> {
            return std::make_unique<LinearAttention>(config, initialiser);
          }};
}

}  // namespace mixgrad
