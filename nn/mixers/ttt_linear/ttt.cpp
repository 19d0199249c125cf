#include "nn/mixers/ttt_linear/ttt.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/rope.h"

namespace mixgrad {

std::vector<MixerOption> ttt_options() {
  return {{"mini_batch", 16, 1, 1024, true, "M, tokens whose gradients are taken at the same weights"},
          {"rate", 1, 1e-3, 100, false, "the largest learning rate of the network, times the head size"}};
}

namespace {

const MixerForms forms{.causal = true};

/// 1 / i for the i-th token of a mini-batch, as what softplus makes it of.
Tensor first_row(int64_t mini_batch) {
  std::vector<double> row(mini_batch);
  for (int64_t i = 0; i < mini_batch; ++i) row[i] = std::log(std::expm1(1 / static_cast<double>(i + 1)));
  return Tensor::from(row, {mini_batch});
}

}  // namespace

TttMixer::TttMixer(const MixerConfig& config, const std::string& name, Initialiser& initialiser)
    : Mixer(config, name, forms),
      head_size_(width_ / heads_),
      options_{.mini_batch = config.integer_option("mini_batch")},
      gamma_(initialiser.constant({heads_, head_size_}, 1)),
      beta_(initialiser.constant({heads_, head_size_}, 0)),
      largest_rate_(config.option("rate") / static_cast<double>(head_size_)),
      q_(width_, width_, false, initialiser),
      k_(width_, width_, false, initialiser),
      v_(width_, width_, false, initialiser),
      rate_(width_, heads_, true, initialiser),
      out_(width_, width_, false, initialiser),
      row_(initialiser.values(first_row(options_.mini_batch))),
      norm_(NormKind::layer, width_, true, initialiser) {
  check_usage(head_size_ % 2 == 0, "[", name, "] heads of size ", head_size_,
              "; allowed: even ones, for rotary positions");
  declare("q", q_);
  declare("k", k_);
  declare("v", v_);
  declare("rate", rate_);
  declare("out", out_);
  declare("row", row_, Decay::no);
  declare("gamma", gamma_, Decay::no);
  declare("beta", beta_, Decay::no);
  declare("norm", norm_);
}

MixerState TttMixer::initial_state(int64_t batch, int64_t) const {
  const auto zeros = [&](const Shape& shape) {
    return Tensor::zeros(shape, gamma_.dtype(), gamma_.value().device());
  };
  MixerState state;
  state.tensors = first_network(batch);
  const Shape held{batch, options_.mini_batch, heads_, head_size_};
  for (const Shape& shape : {held, held, held.drop_last()}) state.tensors.push_back(zeros(shape));
  return state;
}

Variable TttMixer::mix(const MixerInput& input) {
  const Variable& x = input.x;
  const int64_t batch = x.shape()[0], length = x.shape()[1];
  const int64_t position = input.state != nullptr ? input.state->position : 0;
  std::vector<int64_t> places(length);  // in their mini-batches
  for (int64_t t = 0; t < length; ++t) places[t] = (position + t) % options_.mini_batch;
  const Tensor positions = Tensor::from(places, {length}).to(x.value().device());
  const auto heads = [&](const Variable& projected) {
    return reshape(projected, {batch, length, heads_, head_size_});
  };
  const Tokens tokens{.q = rope(heads(q_.forward(x)), positions),
                      .k = rope(heads(k_.forward(x)), positions),
                      .v = heads(v_.forward(x)),
                      .rate = scale(sigmoid(rate_.forward(x)), largest_rate_)};
  const Variable row = softplus(row_);
  Variable z;
  if (input.state != nullptr) {
    z = Variable(read_on(tokens, row, *input.state));
    input.state->position += length;
  } else {
    z = read(tokens, row);
  }
  const Variable normed = add(multiply(layer_norm(z, {}, {}, options_.eps), gamma_), beta_);
  return out_.forward(norm_.forward(reshape(add(tokens.q, normed), x.shape())));
}

}  // namespace mixgrad
