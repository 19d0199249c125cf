// What the mixers that keep a matrix a head have in common: the projections to queries, keys and values, the
// matrix that is handed on when a text is read in pieces, and the way from the heads back to the width.
#pragma once

#include <optional>

#include "autograd/ops/norm.h"
#include "autograd/ops/recurrence.h"
#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {

/// What such a mixer is made of, beside the parameters of its own.
struct RecurrentParts {
  int64_t key_heads;              // Hk, heads of queries and keys; each serves a group of value heads
  int64_t key_dim;                // size of a projected query or key
  int64_t value_dim;              // dv
  int64_t steps = 1;              // n, keys and values a token
  int64_t features = 0;           // dk, rows of the matrix, where keys are mapped to features; 0: key_dim
  bool normaliser = false;        // a vector [dk] beside the matrix, by which outputs are divided
  bool convolution = false;       // short convolutions behind the projections
  bool convolution_bias = false;  // biases in them
  bool norm = true;               // each head's output is divided by its root mean square
  std::optional<GateFunction> gate = {};  // and multiplied by a gate; silu where norm is false
  int64_t gate_rank = 0;  // the gate's projection passes so many numbers and has a bias; 0: neither
};

/// A matrix [dk, dv] for each head, which tokens write and read. Decodes with the matrices, normalisers and
/// the last three tokens of each convolution: a state of constant size.
class RecurrentMixer : public Mixer {
 public:
  MixerState initial_state(int64_t batch, int64_t capacity) const override;
  /// A write a step, one read, and the convolutions; mixers add what they do beyond it.
  double flops_per_token(int64_t length) const override;

 protected:
  RecurrentMixer(const MixerConfig& config, std::string name, const MixerForms& forms,
                 const RecurrentParts& parts, Initialiser& initialiser);

  /// One call's operands. With several steps k and v have an axis n behind T.
  struct Operands {
    const MixerInput& input;
    Variable q;                  // [B, T, Hk, key_dim]
    Variable k;                  // [B, Tk, Hk, key_dim]
    Variable v;                  // [B, Tk, H, dv]
    Variable state, normaliser;  // [B, H, dk, dv] and [B, H, dk]; undefined: zero

    /// Where the first token stands in its text.
    int64_t position() const { return input.state != nullptr ? input.state->position : 0; }
  };

  /// Writes the keys and values, reads with the queries. The state after the last token is wanted if
  /// in.input.state isn't null.
  virtual Recurrence recur(const Operands& in) = 0;

  /// What the heads read, o [B, T, H, dv], on its way to the projection to the width: normalised and gated.
  virtual Variable finish(const Variable& o, const Variable& x) const;

  /// The keys of x [B, T, D], [B, T, Hk, key_dim], as if its first token were that of a text.
  Variable keys(const Variable& x) const;

  /// H dk dv: how many numbers the matrices hold.
  double state_size() const;

  const RecurrentParts parts_;

 private:
  Variable mix(const MixerInput& input) final;
  /// [B, T, n heads size] -> [B, T, n, heads, size], without the axis n if it is 1.
  static Variable split(const Variable& x, int64_t steps, int64_t heads);

  Linear q_, k_, v_;
  std::optional<ShortConv> q_conv_, k_conv_, v_conv_;
  std::optional<Linear> gate_down_, gate_;
  Linear out_;
  Variable norm_;
};

}  // namespace mixgrad
