// The language model: one pre-norm decoder for all mixers.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "autograd/ops/softmax.h"
#include "models/config.h"
#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {

/// Weights of a fast MLP: matrices of their own for each text of a batch, and each of its pieces.
struct FastWeights {
  Variable up;    // [B, pieces, hidden, D]
  Variable down;  // [B, pieces, D, hidden]
  int64_t piece;  // M, tokens in a piece
};

/// x += mixer(conv(norm(x))); x += mlp(norm(x)). The convolution is there if the configuration wants it.
/// A block with a fast MLP has x += fast_mlp(norm(x)) between the two.
class Block : public Module {
 public:
  Block(const ModelConfig& config, const MixerChoice& choice, bool fast, Initialiser& initialiser);

  /// x [B, T, D]. Dropout of the branches draws from the generator, if given.
  Variable forward(const Variable& x, MixerState* state, Generator* dropout);

  /// Its two parts: the mixer, and the MLPs behind it. The weights of a fast MLP are its parameters unless
  /// others are given.
  Variable mix(const Variable& x, MixerState* state, Generator* dropout);
  Variable feed(const Variable& x, const FastWeights* fast, Generator* dropout);

  MixerState initial_state(int64_t batch, int64_t capacity) const;

  Mixer& mixer() { return *mixer_; }
  /// Null: it has none.
  const Mlp* fast_mlp() const { return fast_mlp_.get(); }
  /// What the mixer sees when the block is given x.
  Variable mixer_input(const Variable& x, MixerState* state = nullptr) const;

 private:
  double dropout_;
  Norm mixer_norm_;
  std::optional<ShortConv> conv_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Norm> fast_norm_;  // with the fast MLP only
  std::unique_ptr<Mlp> fast_mlp_;
  Norm mlp_norm_;
  Mlp mlp_;
};

/// What a model that learns while it reads has learned, and the piece of M tokens that it is reading: its
/// loss, and so the next update, is known once the token behind it is.
struct LearningState {
  Tensors weights;                // of each fast MLP, up [B, 1, hidden, D] and down [B, 1, D, hidden]
  std::vector<MixerState> begin;  // of the mixers behind the first fast MLP, before the piece
  Tensor x;                       // [B, M, D]: what the first fast MLP's block gets from its mixer
  Tensor ids;                     // int32 [B, M + 1]: the piece's tokens and the one behind it
  int64_t held = 0;               // how many of its tokens have been read

  int64_t bytes() const;
};

/// Where a model stands in the texts that it reads piece by piece.
struct LanguageModelState {
  std::vector<MixerState> layers;
  LearningState learning;  // empty unless the model learns while it reads
  int64_t position = 0;    // tokens read

  int64_t bytes() const;
};

/// tokens -> embedding (+ positions) -> blocks -> norm -> logits. With test-time training the last blocks
/// have MLPs that learn while a text is read: docs/test_time_training.md.
class LanguageModel : public Module {
 public:
  /// The configuration is resolved first; parameters are drawn in the order of parameters().
  LanguageModel(const ModelConfig& config, Initialiser& initialiser);

  const ModelConfig& config() const { return config_; }

  /// Logits [B, T, V] of each next token. ids int32 [B, T], T at most what remains of a learned context.
  /// With a state, reads on behind it (under NoGrad). With a generator, dropout is active.
  Variable logits(const Tensor& ids, LanguageModelState* state = nullptr, Generator* dropout = nullptr);
  /// Logits of the token behind the last of each text [B, V], read on behind the state, under NoGrad.
  std::vector<double> next_logits(const Tensor& ids, LanguageModelState& state);
  /// Mean cross entropy in nats over the targets that are not -100. targets int32 [B, T].
  Variable loss(const Tensor& ids, const Tensor& targets, Generator* dropout = nullptr);
  /// The same as a sum, without a history and without dropout.
  NatsOfTargets nats(const Tensor& ids, const Tensor& targets);

  /// The state before the first token of `batch` texts of about `capacity` tokens.
  LanguageModelState initial_state(int64_t batch, int64_t capacity) const;
  /// How many tokens can be read into one state: the context for learned positions, else no limit.
  int64_t longest_read() const;

  /// The input of block `layer`'s mixer for the given tokens: for looking inside. Fast MLPs before it are
  /// what they are before they learn.
  Variable mixer_input(const Tensor& ids, int64_t layer);
  Mixer& mixer(int64_t layer) { return blocks_.at(layer)->mixer(); }

  /// FLOPs of one token's forward pass at this length: two for each multiply-add of the matrices, and the
  /// mixers' own.
  double flops_per_token(int64_t length);
  /// And those of what the model learns, if it does, while it reads a text of this length: once for each time
  /// that it reads it, in training too.
  double learning_flops(int64_t length);

 private:
  Variable embed(const Tensor& ids, int64_t first_position, Generator* dropout);
  /// What the head sees [B, T, D]; parameters as those of logits.
  Variable features(const Tensor& ids, LanguageModelState* state, Generator* dropout);

  // Of a model that learns while it reads: models/test_time_training.cpp. x [B, T, D] is what the block of
  // the first fast MLP gets from its mixer.

  /// What the head sees [B, T, D]. weights: as those of a LearningState, of as many pieces as there are.
  /// states: of the mixers behind the first fast MLP, in their order, or null.
  Variable features_behind(const Variable& x, const std::vector<Variable>& weights, MixerState* states,
                           Generator* dropout);
  /// What the head sees of a whole text [B, T, D], with ids [B, T].
  Variable learn_and_read(const Variable& x, const Tensor& ids, Generator* dropout);
  /// The same behind a state.
  Variable learn_and_read_on(const Variable& x, const Tensor& ids, LanguageModelState& state);
  /// One update from a piece x [B, M, D] and the token behind each of its tokens, int32 [B, M]. Reads the
  /// piece on behind the states.
  void learn(const Tensor& x, const Tensor& next, std::vector<MixerState>& states, Tensors& weights);
  LearningState initial_learning_state(int64_t batch, int64_t capacity) const;
  /// up and down of each fast MLP; and copies of them for each text, as they are before its first token.
  std::vector<Variable> fast_parameters() const;
  Tensors first_weights(int64_t batch) const;
  std::vector<MixerState> initial_states_behind(int64_t batch, int64_t capacity) const;
  /// [V, D]
  const Variable& head_weight() const { return head_ != nullptr ? head_->weight() : tokens_.weight(); }

  ModelConfig config_;
  Embedding tokens_;
  std::unique_ptr<Embedding> positions_;  // learned only
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<Norm> final_norm_;
  std::unique_ptr<Linear> head_;  // null: the embedding's weight is the head's
};

}  // namespace mixgrad
