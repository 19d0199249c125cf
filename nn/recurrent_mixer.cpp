#include "nn/recurrent_mixer.h"

#include "autograd/ops/elementwise.h"

namespace mixgrad {

namespace {

RecurrentParts completed(RecurrentParts parts) {
  if (parts.features == 0) parts.features = parts.key_dim;
  return parts;
}

}  // namespace

RecurrentMixer::RecurrentMixer(const MixerConfig& config, std::string name, const MixerForms& forms,
                               const RecurrentParts& parts, Initialiser& initialiser)
    : Mixer(config, std::move(name), forms),
      parts_(completed(parts)),
      q_(width_, parts.key_heads * parts.key_dim, false, initialiser),
      k_(width_, parts.steps * parts.key_heads * parts.key_dim, false, initialiser),
      v_(width_, parts.steps * heads_ * parts.value_dim, false, initialiser),
      out_(heads_ * parts.value_dim, width_, false, initialiser) {
  declare("q", q_);
  declare("k", k_);
  declare("v", v_);
  declare("out", out_);
  if (parts.convolution) {
    const auto add = [&](std::string conv_name, std::optional<ShortConv>& conv, const Linear& projection) {
      const int64_t channels = projection.weight().shape()[0];
      declare(std::move(conv_name), conv.emplace(channels, initialiser, parts.convolution_bias));
    };
    add("q_conv", q_conv_, q_);
    add("k_conv", k_conv_, k_);
    add("v_conv", v_conv_, v_);
  }
  if (parts.gate) {
    const int64_t rank = parts.gate_rank;
    if (rank > 0) declare("gate_down", gate_down_.emplace(width_, rank, false, initialiser));
    declare("gate", gate_.emplace(rank > 0 ? rank : width_, heads_ * parts.value_dim, rank > 0, initialiser));
  }
  if (parts.norm) {
    norm_ = initialiser.constant({parts.value_dim}, 1);
    declare("norm", norm_, Decay::no);
  }
}

MixerState RecurrentMixer::initial_state(int64_t batch, int64_t) const {
  const Tensor& like = out_.weight().value();
  const auto zeros = [&](const Shape& shape) { return Tensor::zeros(shape, like.dtype(), like.device()); };
  MixerState state;
  state.tensors = {zeros({batch, heads_, parts_.features, parts_.value_dim})};
  if (parts_.normaliser) state.tensors.push_back(zeros({batch, heads_, parts_.features}));
  for (const std::optional<ShortConv>* conv : {&q_conv_, &k_conv_, &v_conv_}) {
    if (*conv) state.tensors.push_back((*conv)->empty_tail(batch));
  }
  return state;
}

Variable RecurrentMixer::split(const Variable& x, int64_t steps, int64_t heads) {
  const int64_t batch = x.shape()[0], length = x.shape()[1], size = x.shape()[2] / (steps * heads);
  return steps == 1 ? reshape(x, {batch, length, heads, size})
                    : reshape(x, {batch, length, steps, heads, size});
}

Variable RecurrentMixer::keys(const Variable& x) const {
  const Variable projected = k_.forward(x);
  return split(k_conv_ ? k_conv_->forward(projected, nullptr) : projected, parts_.steps, parts_.key_heads);
}

double RecurrentMixer::state_size() const {
  return static_cast<double>(heads_ * parts_.features * parts_.value_dim);
}

double RecurrentMixer::flops_per_token(int64_t) const {
  double flops = 2.0 * static_cast<double>(parts_.steps + 1) * state_size();
  if (!parts_.convolution) return flops;
  for (const Linear* projection : {&q_, &k_, &v_}) {
    flops += 2.0 * static_cast<double>(ShortConv::taps * projection->weight().shape()[0]);
  }
  return flops;
}

Variable RecurrentMixer::mix(const MixerInput& input) {
  const Variable& source = input.context.defined() ? input.context : input.x;
  MixerState* const state = input.state;
  size_t next = 1;  // of the state's tensors, behind the matrices
  Variable matrices, normaliser;
  if (state != nullptr) {
    matrices = Variable(state->tensors[0]);
    if (parts_.normaliser) normaliser = Variable(state->tensors[next++]);
  }
  const auto project = [&](const Linear& projection, const std::optional<ShortConv>& conv,
                           const Variable& x) {
    const Variable projected = projection.forward(x);
    if (!conv) return projected;
    return conv->forward(projected, state != nullptr ? &state->tensors[next++] : nullptr, input.documents);
  };
  const Variable q = split(project(q_, q_conv_, input.x), 1, parts_.key_heads);
  const Variable k = split(project(k_, k_conv_, source), parts_.steps, parts_.key_heads);
  const Variable v = split(project(v_, v_conv_, source), parts_.steps, heads_);

  const Recurrence read = recur({input, q, k, v, matrices, normaliser});
  if (state != nullptr) {
    state->tensors[0] = read.state.value();
    if (parts_.normaliser) state->tensors[1] = read.normaliser.value();
    state->position += input.x.shape()[1];
  }
  const Variable o = finish(read.output, input.x);
  return out_.forward(reshape(o, {o.shape()[0], o.shape()[1], heads_ * parts_.value_dim}));
}

Variable RecurrentMixer::finish(const Variable& o, const Variable& x) const {
  if (!parts_.gate) return parts_.norm ? rms_norm(o, norm_) : o;
  const Variable gate = reshape(gate_->forward(gate_down_ ? gate_down_->forward(x) : x), o.shape());
  if (!parts_.norm) return swiglu(gate, o);
  return gated_rms_norm(o, gate, norm_, {.function = *parts_.gate});
}

}  // namespace mixgrad
