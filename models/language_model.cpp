#include "models/language_model.h"

#include <cmath>
#include <limits>

#include "autograd/check_finite.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/piecewise_linear.h"

namespace mixgrad {

namespace {

NormKind norm_kind(const ModelConfig& config) {
  return config.norm == "rms" ? NormKind::rms : NormKind::layer;
}

Variable maybe_dropout(const Variable& x, double rate, Generator* generator) {
  return generator != nullptr ? dropout(x, rate, *generator) : x;
}

/// int32 [T]: first, first + 1, ...
Tensor consecutive(int64_t first, int64_t count) {
  std::vector<int32_t> ids(count);
  for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(first + i);
  return Tensor::from(ids, {count});
}

/// [T, D]: sin and cos of position / 10000^(2i/D), in the first and the second half. Vaswani et al., 2017,
/// section 3.5.
Tensor sinusoids(int64_t first, int64_t count, int64_t width, DType dtype, Device device) {
  const int64_t half = width / 2;
  std::vector<double> table(count * width);
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(first + t) * std::pow(10000.0, -static_cast<double>(i) / half);
      table[t * width + i] = std::sin(angle);
      table[t * width + half + i] = std::cos(angle);
    }
  }
  return Tensor::from(table, {count, width}, device).to(dtype);
}

/// Two for each multiply-add of a product with the parameter, if it is a weight that multiplies each token.
double product_flops(const Parameter& parameter) {
  const bool matrix = parameter.variable->shape().rank() == 2 && parameter.decays;
  return matrix ? 2.0 * static_cast<double>(parameter.variable->value().elements()) : 0;
}

}  // namespace

Block::Block(const ModelConfig& config, const MixerChoice& choice, bool fast, Initialiser& initialiser)
    : dropout_(config.dropout),
      mixer_norm_(norm_kind(config), config.width, config.bias, initialiser),
      mixer_(make_mixer(choice, config.width, config.heads, config.positions == "rope", initialiser)),
      fast_norm_(fast ? std::make_unique<Norm>(norm_kind(config), config.width, config.bias, initialiser)
                      : nullptr),
      fast_mlp_(fast ? std::make_unique<Mlp>(config.width, config.ttt_hidden, false, initialiser) : nullptr),
      mlp_norm_(norm_kind(config), config.width, config.bias, initialiser),
      mlp_(config.width, config.mlp_hidden, config.bias, initialiser) {
  declare("mixer_norm", mixer_norm_);
  if (config.conv) declare("conv", conv_.emplace(config.width, initialiser));
  declare("mixer", *mixer_);
  if (fast) {
    declare("fast_norm", *fast_norm_);
    declare("fast_mlp", *fast_mlp_);
  }
  declare("mlp_norm", mlp_norm_);
  declare("mlp", mlp_);
}

MixerState Block::initial_state(int64_t batch, int64_t capacity) const {
  MixerState state = mixer_->initial_state(batch, capacity);
  if (conv_) state.conv_tail = conv_->empty_tail(batch);
  return state;
}

Variable Block::mixer_input(const Variable& x, MixerState* state) const {
  const Variable normed = mixer_norm_.forward(x);
  return conv_ ? conv_->forward(normed, state != nullptr ? &state->conv_tail : nullptr) : normed;
}

Variable Block::forward(const Variable& x, MixerState* state, Generator* dropout) {
  return feed(mix(x, state, dropout), nullptr, dropout);
}

Variable Block::mix(const Variable& x, MixerState* state, Generator* dropout) {
  const Place place("mixer");
  const Variable mixed =
      mixer_->forward({.x = mixer_input(x, state), .context = {}, .key_mask = {}, .state = state});
  return add(x, maybe_dropout(mixed, dropout_, dropout));
}

Variable Block::feed(const Variable& x, const FastWeights* fast, Generator* dropout) {
  Variable h = x;
  if (fast_mlp_ != nullptr) {
    const Place place("fast_mlp");
    const Variable input = fast_norm_->forward(h);
    const Variable output = fast == nullptr
                                ? fast_mlp_->forward(input)
                                : piecewise_linear(gelu_tanh(piecewise_linear(input, fast->up, fast->piece)),
                                                   fast->down, fast->piece);
    h = add(h, maybe_dropout(output, dropout_, dropout));
  }
  const Place place("mlp");
  return add(h, maybe_dropout(mlp_.forward(mlp_norm_.forward(h)), dropout_, dropout));
}

int64_t LanguageModelState::bytes() const {
  int64_t sum = learning.bytes();
  for (const MixerState& layer : layers) sum += layer.bytes();
  return sum;
}

LanguageModel::LanguageModel(const ModelConfig& config, Initialiser& initialiser)
    : config_(config.resolved()), tokens_(config_.vocabulary, config_.width, initialiser) {
  declare("tokens", tokens_);
  if (config_.positions == "learned") {
    positions_ = std::make_unique<Embedding>(config_.context, config_.width, initialiser);
    declare("positions", *positions_);
  }
  const std::vector<MixerChoice> choices = parse_pattern(config_.pattern, config_.layers);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const bool fast = layer >= config_.first_fast_layer();
    blocks_.push_back(std::make_unique<Block>(config_, choices[layer], fast, initialiser));
    declare(str("blocks.", layer), *blocks_.back());
  }
  final_norm_ = std::make_unique<Norm>(norm_kind(config_), config_.width, config_.bias, initialiser);
  declare("final_norm", *final_norm_);
  if (!config_.tie_embeddings) {
    head_ = std::make_unique<Linear>(config_.width, config_.vocabulary, false, initialiser);
    declare("head", *head_);
  }
}

Variable LanguageModel::embed(const Tensor& ids, int64_t first_position, Generator* dropout) {
  const int64_t length = ids.shape()[1];
  check(first_position + length <= longest_read(), "[model] ", first_position + length,
        " tokens are more than the learned context of ", config_.context);
  Variable x = tokens_.forward(ids);  // [B, T, D]
  if (positions_ != nullptr) {
    x = add(x, positions_->forward(consecutive(first_position, length)));
  } else if (config_.positions == "sinusoidal") {
    x = add(x, Variable(sinusoids(first_position, length, config_.width, x.dtype(), x.value().device())));
  }
  return maybe_dropout(x, config_.dropout, dropout);
}

Variable LanguageModel::features(const Tensor& ids, LanguageModelState* state, Generator* dropout) {
  check(ids.shape().rank() == 2, "[model] ids ", ids.shape(), "; allowed: [B, T]");
  check(state == nullptr || !config_.learns() || !recording(),
        "[model] has no gradients while it learns and is read piece by piece; do that under NoGrad");
  Variable x = embed(ids, state != nullptr ? state->position : 0, dropout);
  const auto state_of = [&](int64_t layer) { return state != nullptr ? &state->layers[layer] : nullptr; };
  const int64_t learning_from = config_.learns() ? config_.first_fast_layer() : config_.layers;
  for (int64_t layer = 0; layer < learning_from; ++layer) {
    const Place place("blocks", layer);
    x = blocks_[layer]->forward(x, state_of(layer), dropout);
  }
  if (state != nullptr) state->position += ids.shape()[1];
  if (!config_.learns()) return final_norm_->forward(x);
  {
    const Place place("blocks", learning_from);
    x = blocks_[learning_from]->mix(x, state_of(learning_from), dropout);
  }
  return state != nullptr ? learn_and_read_on(x, ids, *state) : learn_and_read(x, ids, dropout);
}

Variable LanguageModel::logits(const Tensor& ids, LanguageModelState* state, Generator* dropout) {
  return linear(features(ids, state, dropout), head_weight());
}

std::vector<double> LanguageModel::next_logits(const Tensor& ids, LanguageModelState& state) {
  const NoGrad no_grad;
  const Tensor all = features(ids, &state, nullptr).value();
  const Variable last(all.narrow(1, all.shape()[1] - 1, 1).contiguous());  // [B, 1, D]
  return linear(last, head_weight()).value().to_vector();
}

Variable LanguageModel::loss(const Tensor& ids, const Tensor& targets, Generator* dropout) {
  return linear_cross_entropy(features(ids, nullptr, dropout), head_weight(), targets);
}

NatsOfTargets LanguageModel::nats(const Tensor& ids, const Tensor& targets) {
  const NoGrad no_grad;
  return linear_cross_entropy_sum(features(ids, nullptr, nullptr), head_weight(), targets);
}

LanguageModelState LanguageModel::initial_state(int64_t batch, int64_t capacity) const {
  LanguageModelState state;
  for (const auto& block : blocks_) state.layers.push_back(block->initial_state(batch, capacity));
  if (config_.learns()) state.learning = initial_learning_state(batch, capacity);
  return state;
}

int64_t LanguageModel::longest_read() const {
  return config_.positions == "learned" ? config_.context : std::numeric_limits<int64_t>::max();
}

Variable LanguageModel::mixer_input(const Tensor& ids, int64_t layer) {
  Variable x = embed(ids, 0, nullptr);
  for (int64_t below = 0; below < layer; ++below) x = blocks_[below]->forward(x, nullptr, nullptr);
  return blocks_.at(layer)->mixer_input(x);
}

double LanguageModel::flops_per_token(int64_t length) {
  double flops = 0;
  for (const Parameter& parameter : parameters()) {
    const bool looked_up =
        parameter.name == "positions.weight" || (parameter.name == "tokens.weight" && head_ != nullptr);
    if (!looked_up) flops += product_flops(parameter);
  }
  for (const auto& block : blocks_) flops += block->mixer().flops_per_token(length);
  if (config_.conv) flops += 2.0 * static_cast<double>(config_.layers * ShortConv::taps * config_.width);
  return flops;
}

double LanguageModel::learning_flops(int64_t length) {
  if (!config_.learns()) return 0;
  const int64_t first = config_.first_fast_layer();
  const int64_t tokens = std::max<int64_t>(0, length - 1) / config_.ttt_tokens * config_.ttt_tokens;
  // Forward, and backward to what each matrix multiplies; to the matrices of the fast MLPs, too.
  double matrices = 4.0 * static_cast<double>(head_weight().value().elements());
  for (const Variable& fast : fast_parameters()) {
    matrices += 2.0 * static_cast<double>(fast.value().elements());
  }
  double mixers = 0;
  for (int64_t layer = first; layer < config_.layers; ++layer) {
    Mixer& mixer = blocks_[layer]->mixer();
    for (const Parameter& parameter : blocks_[layer]->parameters()) matrices += 2 * product_flops(parameter);
    if (layer > first) {
      for (int64_t t = 1; t <= tokens; ++t) mixers += 3 * mixer.flops_per_token(t);
    } else {
      for (const Parameter& parameter : mixer.parameters()) matrices -= 2 * product_flops(parameter);
    }
  }
  return matrices * static_cast<double>(tokens) + mixers;
}

}  // namespace mixgrad
