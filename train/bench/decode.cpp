#include "train/bench/decode.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "tensor/error.h"
#include "train/bench/whole_mixers.h"
#include "train/options.h"

namespace mixgrad {

namespace {

constexpr int64_t run_tokens = 64;     // decoded one after the other; whole mini-batches of the usual 16
constexpr int64_t piece_tokens = 512;  // read at once before that, so that memory stays bounded

/// A mixer that reads random sequences.
class Decoder {
 public:
  Decoder(const MixerChoice& choice, const DecodeOptions& options, Device device)
      : batch_(options.batch),
        width_(options.heads * options.head_size),
        initialiser_(DType::float32, device, generator_),
        mixer_(make_mixer(choice, width_, options.heads, false, initialiser_)) {
    for (int64_t t = 0; t < run_tokens; ++t) run_.push_back(random_tokens(1));
  }

  Mixer& mixer() { return *mixer_; }

  /// Bytes of the parameters: nearly all of them are read for every token.
  int64_t parameter_bytes() { return mixer_->parameter_count() * size_bytes(initialiser_.dtype()); }
  /// Bytes that the state needs for so many tokens.
  int64_t state_bytes(int64_t tokens) const { return mixer_->initial_state(batch_, tokens).bytes(); }

  /// The state behind so many random tokens, with room for a run more.
  MixerState state_after(int64_t tokens) {
    MixerState state = mixer_->initial_state(batch_, tokens + run_tokens);
    while (state.position < tokens) {
      read(random_tokens(std::min(piece_tokens, tokens - state.position)), state);
    }
    return state;
  }

  /// Decodes a run of tokens one by one; the state moves on.
  void decode_run(MixerState& state) {
    for (const Variable& x : run_) read(x, state);
  }

 private:
  Variable random_tokens(int64_t count) {
    return Variable(
        normal({batch_, count, width_}, 1, generator_, initialiser_.dtype(), initialiser_.device()));
  }

  void read(const Variable& x, MixerState& state) {
    mixer_->forward({.x = x, .context = {}, .key_mask = {}, .state = &state});
  }

  const int64_t batch_, width_;
  Generator generator_{1};
  Initialiser initialiser_;
  const std::unique_ptr<Mixer> mixer_;
  std::vector<Variable> run_;  // run_tokens times [B, 1, D]
};

/// With tensors of its own, which it can change while the original stays.
MixerState copy_of(const MixerState& state) {
  MixerState copy = state;
  for (Tensor& tensor : copy.tensors) tensor = tensor.clone();
  return copy;
}

std::string after(int64_t T) { return str(" after ", T, " tokens"); }

Figure measure_token(Decoder& decoder, const std::string& name, int64_t T, const DecodeOptions& o,
                     const Measuring& measuring) {
  const MixerState state = decoder.state_after(T);
  Figure figure;
  figure.name = name;
  figure.seconds = time_parts(measuring.seconds, [&]() -> std::vector<double> {
    MixerState run_state = copy_of(state);
    const double start = clock_seconds(measuring.device);
    decoder.decode_run(run_state);
    return {(clock_seconds(measuring.device) - start) / run_tokens};
  })[0];
  figure.flops =
      static_cast<double>(o.batch) * module_flops(decoder.mixer(), T + 1, T + run_tokens) / run_tokens;
  figure.bytes = static_cast<double>(decoder.parameter_bytes() + decoder.state_bytes(T));
  figure.tokens = o.batch;
  return figure;
}

/// What follows from a mixer's figures, of the fewest tokens and of the most.
void derive(const std::string& title, const std::vector<int64_t>& lengths, const std::vector<Figure>& figures,
            Decoder& decoder, std::vector<Derived>& derived) {
  const int64_t fewest = lengths.front(), most = lengths.back();
  const auto add_state = [&](const std::string& when, int64_t T) {
    derived.push_back({title + ", state" + when, static_cast<double>(decoder.state_bytes(T)), "bytes"});
  };
  if (fewest < most) {
    derived.push_back({str(title, ", time at T=", most, " over T=", fewest),
                       figures.back().median_seconds() / figures.front().median_seconds(), ""});
  }
  const bool grows = decoder.state_bytes(fewest) != decoder.state_bytes(most);
  if (grows) add_state(after(fewest), fewest);
  add_state(grows || fewest == most ? after(most) : "", most);
  derived.push_back({title + ", parameters", static_cast<double>(decoder.mixer().parameter_count()), ""});
}

void measure_mixer(const MixerChoice& choice, const DecodeOptions& o, const Measuring& measuring,
                   Findings& findings) {
  const std::string title = mixer_title(choice);
  const std::vector<int64_t> asked = parse_lengths(o.lengths);
  std::vector<int64_t> lengths;  // that are wanted, ascending
  for (const int64_t T : std::set<int64_t>(asked.begin(), asked.end())) {
    if (measuring.wanted(title + after(T))) lengths.push_back(T);
  }
  if (lengths.empty()) return;
  Decoder decoder(choice, o, measuring.device);
  std::vector<Figure> figures;
  for (const int64_t T : lengths)
    figures.push_back(measure_token(decoder, title + after(T), T, o, measuring));
  derive(title, lengths, figures, decoder, findings.derived);
  findings.figures.insert(findings.figures.end(), figures.begin(), figures.end());
}

}  // namespace

void DecodeOptions::validate() const {
  check_count("batch", batch, 1, 1 << 20);
  check_count("heads", heads, 1, 1 << 16);
  check_count("head-size", head_size, 1, 1 << 16);
  parse_lengths(lengths);
  causal_mixers(mixers);
}

void declare_decode_options(CLI::App& app, DecodeOptions& o) {
  app.option_defaults()->always_capture_default();
  const auto group = [&](auto* option) { option->group("Decoding"); };
  group(app.add_option("--batch", o.batch, "Sequences: B"));
  group(app.add_option("--lengths", o.lengths, "Tokens that have been read: T, one or several"));
  group(app.add_option("--heads", o.heads, "Heads: H"));
  group(app.add_option("--head-size", o.head_size, "Size of a head: d; the width is H d"));
  group(app.add_option("--mixers", o.mixers, "all, or a pattern such as \"sdpa,gma(components=32)\""));
}

Findings measure_decode(const DecodeOptions& options, const Measuring& measuring) {
  const NoGrad no_grad;
  Findings findings;
  for (const MixerChoice& choice : causal_mixers(options.mixers)) {
    measure_mixer(choice, options, measuring, findings);
  }
  return findings;
}

}  // namespace mixgrad
