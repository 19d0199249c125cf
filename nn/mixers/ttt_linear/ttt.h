// What the mixers of test-time training have in common. Derivation in ttt_linear.md.
#pragma once

#include "autograd/ops/ttt_linear.h"
#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {

/// The options of these mixers.
std::vector<MixerOption> ttt_options();

/// A network a head that learns from the tokens while they are read, in mini-batches. The network itself,
/// whose initial weights are parameters, is a derived class's.
class TttMixer : public Mixer {
 public:
  MixerState initial_state(int64_t batch, int64_t capacity) const override;

 protected:
  /// Declares the projections, the loss's norm, the rates and the norm behind the heads. Throws UsageError
  /// for heads of odd size.
  TttMixer(const MixerConfig& config, const std::string& name, Initialiser& initialiser);

  /// What the network learns from, and is asked.
  struct Tokens {
    Variable q, k, v;  // [B, T, H, d]
    Variable rate;     // [B, T, H]
  };
  /// What the network gives for the queries, [B, T, H, d].
  virtual Variable read(const Tokens& tokens, const Variable& row) = 0;
  /// The same after the tokens of a state, which goes on, all but its position.
  virtual Tensor read_on(const Tokens& tokens, const Variable& row, MixerState& state) = 0;
  /// The network before the first token, as read_on() of autograd/ops keeps it in its memory.
  virtual Tensors first_network(int64_t batch) const = 0;

  const int64_t head_size_;  // d
  const TttOptions options_;
  Variable gamma_, beta_;  // of the loss's norm [H, d]

 private:
  Variable mix(const MixerInput& input) final;

  const double largest_rate_;
  Linear q_, k_, v_, rate_, out_;
  Variable row_;  // before softplus [M]
  Norm norm_;
};

}  // namespace mixgrad
