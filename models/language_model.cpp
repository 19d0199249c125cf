#include "models/language_model.h"

#include <cmath>
#include <limits>

#include "autograd/check_finite.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/linear.h"

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

}  // namespace

Block::Block(const ModelConfig& config, const MixerChoice& choice, Initialiser& initialiser)
    : dropout_(config.dropout),
      mixer_norm_(norm_kind(config), config.width, config.bias, initialiser),
      mixer_(make_mixer(choice, config.width, config.heads, config.positions == "rope", initialiser)),
      mlp_norm_(norm_kind(config), config.width, config.bias, initialiser),
      mlp_(config.width, config.mlp_hidden, config.bias, initialiser) {
  declare("mixer_norm", mixer_norm_);
  declare("mixer", *mixer_);
  declare("mlp_norm", mlp_norm_);
  declare("mlp", mlp_);
}

Variable Block::forward(const Variable& x, MixerState* state, Generator* dropout) {
  const Variable h = [&] {
    const Place place("mixer");
    const Variable mixed =
        mixer_->forward({.x = mixer_input(x), .context = {}, .key_mask = {}, .state = state});
    return add(x, maybe_dropout(mixed, dropout_, dropout));
  }();
  const Place place("mlp");
  return add(h, maybe_dropout(mlp_.forward(mlp_norm_.forward(h)), dropout_, dropout));
}

int64_t LanguageModelState::bytes() const {
  int64_t sum = 0;
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
    blocks_.push_back(std::make_unique<Block>(config_, choices[layer], initialiser));
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
  Variable x = embed(ids, state != nullptr ? state->position : 0, dropout);
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    const Place place("blocks", static_cast<int64_t>(layer));
    x = blocks_[layer]->forward(x, state != nullptr ? &state->layers[layer] : nullptr, dropout);
  }
  if (state != nullptr) state->position += ids.shape()[1];
  return final_norm_->forward(x);
}

Variable LanguageModel::logits(const Tensor& ids, LanguageModelState* state, Generator* dropout) {
  return linear(features(ids, state, dropout), head_weight());
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
  for (const auto& block : blocks_) state.layers.push_back(block->mixer().initial_state(batch, capacity));
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
    const bool matrix = parameter.variable->shape().rank() == 2 && parameter.decays;
    const bool looked_up =
        parameter.name == "positions.weight" || (parameter.name == "tokens.weight" && head_ != nullptr);
    if (matrix && !looked_up) flops += 2.0 * static_cast<double>(parameter.variable->value().elements());
  }
  for (const auto& block : blocks_) flops += block->mixer().flops_per_token(length);
  return flops;
}

}  // namespace mixgrad
