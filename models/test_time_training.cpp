// First-order end-to-end test-time training: how a model learns from a text while it reads it.
// Derivation in docs/test_time_training.md.
#include <algorithm>
#include <cmath>

#include "autograd/arithmetic.h"
#include "autograd/check_finite.h"
#include "autograd/ops/elementwise.h"
#include "autograd/tape.h"
#include "models/language_model.h"
#include "nn/optimizer.h"

namespace mixgrad {

namespace {

constexpr double largest_norm = 1;  // of a text's gradient of all fast weights

/// Every text's gradient, scaled down to the largest norm, times -rate.
Tensors updates(const Tensors& gradients, double rate) {
  const int64_t texts = gradients[0].shape()[0];
  std::vector<double> squares(texts);
  for (const Tensor& gradient : gradients) {
    const std::vector<double> sums = summed_to({texts, 1, 1, 1}, times(gradient, gradient)).to_vector();
    for (int64_t text = 0; text < texts; ++text) squares[text] += sums[text];
  }
  std::vector<double> factors(texts);
  for (int64_t text = 0; text < texts; ++text) {
    factors[text] = -rate * clip_scale(std::sqrt(squares[text]), largest_norm);
  }
  const Tensor& like = gradients[0];
  const Tensor factor = Tensor::from(factors, {texts, 1, 1, 1}).to(like.dtype()).to(like.device());
  Tensors scaled;
  for (const Tensor& gradient : gradients) scaled.push_back(times(factor, gradient));
  return scaled;
}

/// x [B, T, ...] -> the tokens [begin, begin + count).
Tensor tokens(const Tensor& x, int64_t begin, int64_t count) {
  return x.narrow(1, begin, count).contiguous();
}

}  // namespace

int64_t LearningState::bytes() const {
  int64_t sum = x.defined() ? x.bytes() + ids.bytes() : 0;
  for (const Tensor& matrix : weights) sum += matrix.bytes();
  for (const MixerState& state : begin) sum += state.bytes();
  return sum;
}

std::vector<Variable> LanguageModel::fast_parameters() const {
  std::vector<Variable> parameters;
  for (const auto& block : blocks_) {
    if (const Mlp* mlp = block->fast_mlp()) parameters.insert(parameters.end(), {mlp->up(), mlp->down()});
  }
  return parameters;
}

Tensors LanguageModel::first_weights(int64_t batch) const {
  Tensors weights;
  for (const Variable& parameter : fast_parameters()) {
    const Tensor& w = parameter.value();
    weights.push_back(plus(Tensor::zeros({batch, 1, 1, 1}, w.dtype(), w.device()), w));
  }
  return weights;
}

std::vector<MixerState> LanguageModel::initial_states_behind(int64_t batch, int64_t capacity) const {
  std::vector<MixerState> states;
  for (int64_t layer = config_.first_fast_layer() + 1; layer < config_.layers; ++layer) {
    states.push_back(blocks_[layer]->initial_state(batch, capacity));
  }
  return states;
}

LearningState LanguageModel::initial_learning_state(int64_t batch, int64_t capacity) const {
  const Tensor& like = head_weight().value();
  return {.weights = first_weights(batch),
          .begin = initial_states_behind(batch, capacity),
          .x = Tensor::zeros({batch, config_.ttt_tokens, config_.width}, like.dtype(), like.device()),
          .ids = Tensor::zeros({batch, config_.ttt_tokens + 1}, DType::int32, like.device())};
}

Variable LanguageModel::features_behind(const Variable& x, const std::vector<Variable>& weights,
                                        MixerState* states, Generator* dropout) {
  const int64_t first = config_.first_fast_layer();
  Variable h = x;
  for (int64_t layer = first; layer < config_.layers; ++layer) {
    const Place place("blocks", layer);
    const int64_t i = layer - first;
    if (i > 0) h = blocks_[layer]->mix(h, states != nullptr ? &states[i - 1] : nullptr, dropout);
    const FastWeights fast{weights[2 * i], weights[2 * i + 1], config_.ttt_tokens};
    h = blocks_[layer]->feed(h, &fast, dropout);
  }
  return final_norm_->forward(h);
}

void LanguageModel::learn(const Tensor& x, const Tensor& next, std::vector<MixerState>& states,
                          Tensors& weights) {
  std::vector<Variable> leaves;
  for (const Tensor& matrix : weights) leaves.emplace_back(matrix, true);
  {
    const InnerTape tape(leaves);
    const Variable features = features_behind(Variable(x), leaves, states.data(), nullptr);
    const Variable loss = linear_cross_entropy(features, head_weight(), next);
    // The loss is the mean over the texts, and each learns from its own.
    const auto texts = static_cast<double>(x.shape()[0]);
    backward({loss}, {Tensor::full({}, texts, loss.dtype(), loss.value().device())});
  }
  Tensors gradients;
  for (const Variable& leaf : leaves) gradients.push_back(leaf.grad());
  const Tensors steps = updates(gradients, config_.ttt_rate);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = plus(weights[i], steps[i]);
}

Variable LanguageModel::learn_and_read(const Variable& x, const Tensor& ids, Generator* dropout) {
  const int64_t batch = ids.shape()[0], length = ids.shape()[1], piece = config_.ttt_tokens;
  const int64_t pieces = (length + piece - 1) / piece;
  const std::vector<Variable> parameters = fast_parameters();
  Tensors changes;  // how far the weights of each piece are from the parameters [B, pieces, ...]
  for (const Variable& parameter : parameters) {
    const Shape& matrix = parameter.shape();
    changes.push_back(empty_if(true, {batch, pieces, matrix[0], matrix[1]}, parameter.value()));
  }
  Tensors weights = first_weights(batch);
  std::vector<MixerState> states = initial_states_behind(batch, length);
  for (int64_t p = 0; p < pieces; ++p) {
    for (size_t i = 0; i < weights.size(); ++i) {
      changes[i].narrow(1, p, 1).copy_from(minus(weights[i], parameters[i].value()));
    }
    if (p + 1 == pieces) break;  // no token reads what could be learned from the last piece
    learn(tokens(x.value(), p * piece, piece), tokens(ids, p * piece + 1, piece), states, weights);
  }

  // The changes are constants: the gradient is of first order.
  std::vector<Variable> learned;
  for (size_t i = 0; i < weights.size(); ++i) learned.push_back(add(Variable(changes[i]), parameters[i]));
  return features_behind(x, learned, nullptr, dropout);
}

Variable LanguageModel::learn_and_read_on(const Variable& x, const Tensor& ids, LanguageModelState& state) {
  const int64_t length = ids.shape()[1], piece = config_.ttt_tokens;
  MixerState* const behind = state.layers.data() + config_.first_fast_layer() + 1;
  LearningState& open = state.learning;
  Tensor features = empty_like(x.value());
  for (int64_t at = 0, count = 0; at < length; at += count) {
    if (open.held == piece) {
      open.ids.narrow(1, piece, 1).copy_from(ids.narrow(1, at, 1));
      learn(open.x, tokens(open.ids, 1, piece), open.begin, open.weights);
      open.held = 0;
    }
    count = std::min(piece - open.held, length - at);
    const Tensor now = tokens(x.value(), at, count);
    open.x.narrow(1, open.held, count).copy_from(now);
    open.ids.narrow(1, open.held, count).copy_from(ids.narrow(1, at, count));
    open.held += count;
    std::vector<Variable> weights;
    for (const Tensor& matrix : open.weights) weights.emplace_back(matrix);
    features.narrow(1, at, count).copy_from(features_behind(Variable(now), weights, behind, nullptr).value());
  }
  return Variable(features);
}

}  // namespace mixgrad
