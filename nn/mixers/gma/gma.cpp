#include "nn/mixers/gma/gma.h"

#include "autograd/ops/elementwise.h"
#include "autograd/ops/gma.h"
#include "autograd/ops/gmm.h"
#include "autograd/ops/norm.h"

namespace mixgrad {

namespace {

const MixerForms forms{
    .causal = true, .bidirectional = true, .cross = true, .key_mask = true, .documents = true};

}  // namespace

Gma::Gma(const MixerConfig& config, Initialiser& initialiser)
    : Mixer(config, "gma", forms),
      components_(config.integer_option("components")),
      routing_(config.integer_option("routing")),
      head_size_(config.width / config.heads),
      normalise_(config.option("normalise") != 0),
      q_(config.width, config.heads * routing_, false, initialiser),
      k_(config.width, config.heads * routing_, false, initialiser),
      v_(config.width, config.width, false, initialiser),
      out_(config.width, config.width, false, initialiser),
      mixture_(config, initialiser) {
  declare("q", q_);
  declare("k", k_);
  declare("v", v_);
  declare("out", out_);
  declare("mean", mixture_.mean, Decay::no);
  declare("omega", mixture_.omega, Decay::no);
  declare("alpha", mixture_.alpha, Decay::no);
}

MixerState Gma::initial_state(int64_t batch, int64_t) const {
  const Tensor& like = mixture_.mean.value();
  MixerState state;
  state.tensors = {Tensor::zeros({batch, heads_, components_, head_size_}, like.dtype(), like.device()),
                   Tensor::zeros({batch, heads_, components_}, like.dtype(), like.device())};
  return state;
}

double Gma::flops_per_token(int64_t) const {
  // Routing of query and key, write and read of the slots; whatever the length.
  return static_cast<double>(heads_ * components_) * static_cast<double>(6 * routing_ + 4 * head_size_);
}

Variable Gma::route(const Linear& projection, const Variable& x) const {
  const Variable routed = reshape(projection.forward(x), {x.shape()[0], x.shape()[1], heads_, routing_});
  return normalise_ ? rms_norm(routed, {}, 1e-6) : routed;
}

Variable Gma::mix(const MixerInput& input) {
  const Variable& source = input.context.defined() ? input.context : input.x;
  const Variable q = route(q_, input.x);  // [B, T, H, dr]
  const Variable k = route(k_, source);   // [B, Tk, H, dr]
  const Variable v = reshape(v_.forward(source), {source.shape()[0], source.shape()[1], heads_, head_size_});
  Variable slots, normaliser;
  if (input.state != nullptr) {
    slots = Variable(input.state->tensors[0]);
    normaliser = Variable(input.state->tensors[1]);
  }
  const GmaOptions options{
      .causal = input.causal, .final_state = input.state != nullptr, .documents = input.documents};
  const Recurrence read =
      gma(q, k, v, mixture_.mean, mixture_.omega, mixture_.alpha, options, input.key_mask, slots, normaliser);
  if (input.state != nullptr) {
    input.state->tensors = {read.state.value(), read.normaliser.value()};
    input.state->position += input.x.shape()[1];
  }
  return out_.forward(reshape(read.output, input.x.shape()));
}

Tensor Gma::key_responsibilities(const Variable& x) {
  const NoGrad no_grad;
  return gmm_responsibilities(route(k_, x), mixture_.mean, mixture_.omega, mixture_.alpha).value();
}

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
      .make = [](const MixerConfig& config, Initialiser& initialiser) -> std::unique_ptr<Mixer> {
        return std::make_unique<Gma>(config, initialiser);
      }};
}

}  // namespace mixgrad
