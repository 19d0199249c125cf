#include "nn/mixers/titans/memory_mixer.h"

#include "autograd/ops/elementwise.h"
#include "autograd/ops/norm.h"

namespace mixgrad {

std::vector<MixerOption> memory_options() {
  return {{"chunk", 16, 1, 1024, true, "C, tokens whose gradients are taken at the same weights"},
          {"rate", 1, 1e-3, 1024, false, "the largest learning rate of a whole chunk"}};
}

namespace {

const MixerForms forms{.causal = true};

}  // namespace

MemoryMixer::MemoryMixer(const MixerConfig& config, const std::string& name, int64_t key_dim,
                         Initialiser& initialiser)
    : Mixer(config, name, forms),
      key_dim_(key_dim),
      head_size_(width_ / heads_),
      chunk_(config.integer_option("chunk")),
      largest_rate_(config.option("rate") / static_cast<double>(chunk_)),
      q_(width_, heads_ * key_dim, false, initialiser),
      k_(width_, heads_ * key_dim, false, initialiser),
      v_(width_, width_, false, initialiser),
      q_conv_(heads_ * key_dim, initialiser),
      k_conv_(heads_ * key_dim, initialiser),
      v_conv_(width_, initialiser),
      rate_(width_, heads_, true, initialiser),
      momentum_(width_, heads_, true, initialiser),
      keep_(width_, heads_, initialiser),
      gate_(width_, width_, false, initialiser),
      out_(width_, width_, false, initialiser),
      norm_(initialiser.constant({head_size_}, 1)) {
  declare("q", q_);
  declare("k", k_);
  declare("v", v_);
  declare("q_conv", q_conv_);
  declare("k_conv", k_conv_);
  declare("v_conv", v_conv_);
  declare("rate", rate_);
  declare("momentum", momentum_);
  declare("keep", keep_);
  declare("gate", gate_);
  declare("out", out_);
  declare("norm", norm_, Decay::no);
}

MixerState MemoryMixer::initial_state(int64_t batch, int64_t) const {
  MixerState state;
  state.tensors = {q_conv_.empty_tail(batch), k_conv_.empty_tail(batch), v_conv_.empty_tail(batch)};
  const Tensors memory = first_memory(batch);
  state.tensors.insert(state.tensors.end(), memory.begin(), memory.end());
  return state;
}

double MemoryMixer::flops_of_convolutions() const {
  return 2.0 * static_cast<double>(ShortConv::taps * (2 * heads_ * key_dim_ + width_));
}

Variable MemoryMixer::mix(const MixerInput& input) {
  const Variable& x = input.x;
  const int64_t batch = x.shape()[0], length = x.shape()[1];
  MixerState* state = input.state;
  const auto convolved = [&](const Linear& projection, const ShortConv& conv, int index) {
    const Variable projected = projection.forward(x);
    const int64_t size = projected.shape()[2] / heads_;
    return reshape(conv.forward(projected, state != nullptr ? &state->tensors[index] : nullptr),
                   {batch, length, heads_, size});
  };
  const Variable momentum = momentum_.forward(x);
  // Of a gradient, momentum applies 1 / (1 - eta) times its rate in the end.
  const Variable rate = multiply(sigmoid(rate_.forward(x)), sigmoid(scale(momentum, -1)));
  const Tokens tokens{.q = l2_normalize(convolved(q_, q_conv_, 0)),
                      .k = l2_normalize(convolved(k_, k_conv_, 1)),
                      .v = convolved(v_, v_conv_, 2),
                      .rate = scale(rate, largest_rate_),
                      .log_keep = keep_.forward(x),
                      .log_momentum = log_sigmoid(momentum),
                      .x = x};
  Variable o;
  if (state != nullptr) {
    Tensors memory(state->tensors.begin() + convolutions, state->tensors.end());
    o = Variable(read_on(tokens, state->position, memory));
    std::copy(memory.begin(), memory.end(), state->tensors.begin() + convolutions);
    state->position += length;
  } else {
    o = read(tokens);
  }
  const Variable gate = reshape(gate_.forward(x), o.shape());
  return out_.forward(reshape(gated_rms_norm(o, gate, norm_), x.shape()));
}

Tensor MemoryMixer::zeros(const Shape& shape) const {
  return Tensor::zeros(shape, norm_.dtype(), norm_.value().device());
}

}  // namespace mixgrad
