// The mixer contract: what a sequence mixer takes, gives, and says of itself; and the registry of all mixers.
//
// A mixer mixes information along the sequence: attention, Gaussian Mixture Attention, a recurrence. Each
// lives in a folder nn/mixers/<name>/ and has one line in nn/mixers/mixers.def; docs/add_a_mixer.md shows how
// to add one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/module.h"

namespace mixgrad {

/// What a mixer remembers between calls while a sequence is read piece by piece.
struct MixerState {
  Tensors tensors;       // the mixer's own: a KV cache, a matrix state; [B, ...] each
  int64_t position = 0;  // how many tokens it has read
  int64_t held = 0;      // how many of them a cache of tokens still holds; 0 for a recurrent mixer
  Tensor conv_tail;      // of the convolution that a model may have before the mixer, which doesn't see it

  int64_t bytes() const;
};

/// One call's input. B sequences, T tokens, width D.
struct MixerInput {
  Variable x;             // [B, T, D]
  Variable context;       // [B, Tk, D]: keys and values come from it (the cross form); undefined: from x
  Tensor key_mask;        // int32 [B, Tk], 0 = this key does not exist; undefined: all do
  Tensor documents = {};  // int32 [B, T], not 0 = a document begins with this token, which sees none before
                          // it, nor a state; undefined: none begins
  bool causal = true;     // token t sees tokens up to t; else all
  MixerState* state = nullptr;  // read on after what it holds, and leave it behind the last token; gradients
                                // reach x and the parameters through this call's tokens and end at the state
};

/// Which forms a mixer has.
struct MixerForms {
  bool causal = false;
  bool bidirectional = false;
  bool cross = false;
  bool key_mask = false;
  bool documents = false;       // keeps documents in a row apart; causal only
  bool rope = false;            // takes rotary positions
  bool recorded_state = false;  // gradients flow while it reads on behind a state; else that needs NoGrad
};

/// A numeric setting of a mixer, as it is written in a pattern: gma(components=64).
struct MixerOption {
  std::string name;
  double default_value;
  double minimum;
  double maximum;
  bool integer;
  std::string help;
};

/// Everything that a mixer is built from.
struct MixerConfig {
  int64_t width = 0;
  int64_t heads = 0;
  bool rope = false;
  std::map<std::string, double> options;  // all of the mixer's options, by name

  double option(const std::string& name) const { return options.at(name); }
  int64_t integer_option(const std::string& name) const { return static_cast<int64_t>(options.at(name)); }
  /// A size for which 0 stands for `otherwise`.
  int64_t size_option(const std::string& name, int64_t otherwise) const {
    return integer_option(name) == 0 ? otherwise : integer_option(name);
  }
  /// How many heads share the others in groups; 0: each is a group of its own. Throws UsageError, in the name
  /// of the mixer, unless it divides the heads.
  int64_t group_option(const std::string& mixer, const std::string& name) const;
};

class Mixer : public Module {
 public:
  /// y [B, T, D]. Checks the input against the mixer's forms, then mixes. With a state, T tokens are read in
  /// one go (prefill) or one by one (decoding); any split gives the same outputs up to rounding.
  Variable forward(const MixerInput& input);

  /// The state before the first token, for sequences of a causal model. `capacity` is how many tokens are
  /// expected; a state that grows with them makes room for so many at once.
  virtual MixerState initial_state(int64_t batch, int64_t capacity) const = 0;

  /// gamma [B, T, H, K]: which component each token of x [B, T, D], as a key, is written to, for a mixer that
  /// has components; else undefined. No gradient.
  virtual Tensor key_responsibilities(const Variable&) { return {}; }

  /// Multiply-adds times two of one token's forward pass beyond its linear projections, at position `length`.
  virtual double flops_per_token(int64_t length) const = 0;

 protected:
  Mixer(const MixerConfig& config, std::string name, const MixerForms& forms);

  virtual Variable mix(const MixerInput& input) = 0;

  const int64_t width_;
  const int64_t heads_;

 private:
  const std::string name_;
  const MixerForms forms_;
};

/// What the registry knows of a mixer.
struct MixerKind {
  std::string name;
  std::string summary;  // one line for --help and tables
  MixerForms forms;
  std::vector<MixerOption> options;
  std::string check_options;  // a small configuration, with its parts of different sizes, for gradient checks
                              // and tests
  std::vector<std::string> causal_check_options = {};  // others, with options of the causal form alone
  std::unique_ptr<Mixer> (*make)(const MixerConfig& config, Initialiser& initialiser);
};

/// All mixers, in the order of mixers.def.
const std::vector<MixerKind>& mixer_kinds();
/// Throws UsageError that lists the known mixers.
const MixerKind& find_mixer(const std::string& name);

/// A mixer with its options, as a pattern names it.
struct MixerChoice {
  const MixerKind* kind;
  std::map<std::string, double> options;  // complete: the defaults where nothing else was said

  /// "gma(components=64,routing=16)": every option that differs from its default.
  std::string text() const;
};

/// As many layers as the pattern names.
inline constexpr int64_t any_layers = 0;

/// One choice a layer from a pattern such as "gma(components=64)*2,sdpa": a comma-separated list in which *n
/// repeats. A pattern shorter than `layers` is repeated and must divide it. Throws UsageError that says what
/// is wrong where.
std::vector<MixerChoice> parse_pattern(const std::string& pattern, int64_t layers);

/// The shortest pattern that says the same: "gma(components=32)*3,sdpa".
std::string pattern_text(const std::vector<MixerChoice>& choices);

/// A MixerKind's `make` for a class of mixers.
template <class M>
std::unique_ptr<Mixer> construct(const MixerConfig& config, Initialiser& initialiser) {
  return std::make_unique<M>(config, initialiser);
}

std::unique_ptr<Mixer> make_mixer(const MixerChoice& choice, int64_t width, int64_t heads, bool rope,
                                  Initialiser& initialiser);

}  // namespace mixgrad
