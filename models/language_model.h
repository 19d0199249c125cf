// The language model: one pre-norm decoder for all mixers.
#pragma once

#include <memory>
#include <vector>

#include "autograd/ops/softmax.h"
#include "models/config.h"
#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {

/// x += mixer(norm(x)); x += mlp(norm(x)).
class Block : public Module {
 public:
  Block(const ModelConfig& config, const MixerChoice& choice, Initialiser& initialiser);

  /// x [B, T, D]. Dropout of the two branches draws from the generator, if given.
  Variable forward(const Variable& x, MixerState* state, Generator* dropout);

  Mixer& mixer() { return *mixer_; }
  /// What the mixer sees when the block is given x.
  Variable mixer_input(const Variable& x) const { return mixer_norm_.forward(x); }

 private:
  double dropout_;
  Norm mixer_norm_;
  std::unique_ptr<Mixer> mixer_;
  Norm mlp_norm_;
  Mlp mlp_;
};

/// Where a model stands in the texts that it reads piece by piece.
struct LanguageModelState {
  std::vector<MixerState> layers;
  int64_t position = 0;  // tokens read

  int64_t bytes() const;
};

/// tokens -> embedding (+ positions) -> blocks -> norm -> logits.
class LanguageModel : public Module {
 public:
  /// The configuration is resolved first; parameters are drawn in the order of parameters().
  LanguageModel(const ModelConfig& config, Initialiser& initialiser);

  const ModelConfig& config() const { return config_; }

  /// Logits [B, T, V] of each next token. ids int32 [B, T], T at most what remains of a learned context.
  /// With a state, reads on behind it (under NoGrad). With a generator, dropout is active.
  Variable logits(const Tensor& ids, LanguageModelState* state = nullptr, Generator* dropout = nullptr);
  /// Mean cross entropy in nats over the targets that are not -100. targets int32 [B, T].
  Variable loss(const Tensor& ids, const Tensor& targets, Generator* dropout = nullptr);
  /// The same as a sum, without a history and without dropout.
  NatsOfTargets nats(const Tensor& ids, const Tensor& targets);

  /// The state before the first token of `batch` texts of about `capacity` tokens.
  LanguageModelState initial_state(int64_t batch, int64_t capacity) const;
  /// How many tokens can be read into one state: the context for learned positions, else no limit.
  int64_t longest_read() const;

  /// The input of block `layer`'s mixer for the given tokens: for looking inside.
  Variable mixer_input(const Tensor& ids, int64_t layer);
  Mixer& mixer(int64_t layer) { return blocks_.at(layer)->mixer(); }

  /// FLOPs of one token's forward pass at this length: two for each multiply-add of the matrices, and the
  /// mixers' own.
  double flops_per_token(int64_t length);

 private:
  Variable embed(const Tensor& ids, int64_t first_position, Generator* dropout);
  /// What the head sees [B, T, D]; parameters as those of logits.
  Variable features(const Tensor& ids, LanguageModelState* state, Generator* dropout);
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
