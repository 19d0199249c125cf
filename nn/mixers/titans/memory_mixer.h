// What the mixers have in common whose memory learns by gradient descent with momentum. Derivation in
// titans.md.
#pragma once

#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {

/// The options of these mixers.
std::vector<MixerOption> memory_options();

/// A memory a head that learns to answer keys with values while it reads, and is asked by the queries. The
/// memory itself is a derived class's.
class MemoryMixer : public Mixer {
 public:
  MixerState initial_state(int64_t batch, int64_t capacity) const override;

 protected:
  /// Declares the projections, convolutions, gates and the norm behind the memory. key_dim: size of a head's
  /// queries and keys.
  MemoryMixer(const MixerConfig& config, const std::string& name, int64_t key_dim, Initialiser& initialiser);

  struct Tokens {
    Variable q, k;                          // [B, T, H, dk], of length 1
    Variable v;                             // [B, T, H, d]
    Variable rate, log_keep, log_momentum;  // [B, T, H]
    Variable x;                             // [B, T, D], which they are made of
  };
  /// What the memory answers, [B, T, H, d].
  virtual Variable read(const Tokens& tokens) = 0;
  /// The same after `position` other tokens, of which memory is all that is known, and is brought up to date.
  virtual Tensor read_on(const Tokens& tokens, int64_t position, Tensors& memory) = 0;
  /// The memory before the first token, as read_on() keeps it.
  virtual Tensors first_memory(int64_t batch) const = 0;
  /// For one token.
  double flops_of_convolutions() const;

  Tensor zeros(const Shape& shape) const;

  const int64_t key_dim_;    // dk
  const int64_t head_size_;  // d, of values
  const int64_t chunk_;      // C

 private:
  static constexpr int convolutions = 3;  // whose last tokens come first in a state

  Variable mix(const MixerInput& input) final;

  const double largest_rate_;
  Linear q_, k_, v_;
  ShortConv q_conv_, k_conv_, v_conv_;
  Linear rate_, momentum_;
  DecayGate keep_;
  Linear gate_, out_;
  Variable norm_;
};

}  // namespace mixgrad
