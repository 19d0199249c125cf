#include "train/bench/decode.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "models/generate.h"
#include "models/language_model.h"
#include "tensor/error.h"
#include "train/bench/whole_mixers.h"
#include "train/options.h"

namespace mixgrad {

namespace {

constexpr int64_t run_tokens = 64;     // decoded one after the other; whole mini-batches of the usual 16
constexpr int64_t piece_tokens = 512;  // read at once before that, so that memory stays bounded

/// With tensors of its own, which it can change while the original stays.
Tensors copy_of(const Tensors& tensors) {
  Tensors copy;
  for (const Tensor& tensor : tensors) copy.push_back(tensor.clone());
  return copy;
}
MixerState copy_of(const MixerState& state) {
  MixerState copy = state;
  copy.tensors = copy_of(state.tensors);
  return copy;
}
std::vector<MixerState> copy_of(const std::vector<MixerState>& states) {
  std::vector<MixerState> copy;
  for (const MixerState& state : states) copy.push_back(copy_of(state));
  return copy;
}
LanguageModelState copy_of(const LanguageModelState& state) {
  LanguageModelState copy = state;
  copy.layers = copy_of(state.layers);
  if (state.learning.x.defined()) {
    copy.learning.begin = copy_of(state.learning.begin);
    copy.learning.x = state.learning.x.clone();
    copy.learning.ids = state.learning.ids.clone();
  }
  return copy;
}

/// A mixer that reads random sequences.
class MixerReader {
 public:
  using State = MixerState;

  MixerReader(const MixerChoice& choice, const DecodeOptions& options, Device device)
      : title(mixer_title(choice)),
        batch_(options.batch),
        width_(options.model.width),
        initialiser_(DType::float32, device, generator_),
        mixer_(make_mixer(choice, width_, options.model.heads, false, initialiser_)) {
    for (int64_t t = 0; t < run_tokens; ++t) run_.push_back(random_tokens(1));
  }

  const std::string title;
  Module& module() { return *mixer_; }
  State initial_state(int64_t tokens) const { return mixer_->initial_state(batch_, tokens); }
  double run_flops(int64_t T) const { return module_flops(*mixer_, T + 1, T + run_tokens); }

  void read_random(int64_t count, State& state) { read(random_tokens(count), state); }
  void decode_run(State& state) {
    for (const Variable& x : run_) read(x, state);
  }

 private:
  Variable random_tokens(int64_t count) {
    return Variable(
        normal({batch_, count, width_}, 1, generator_, initialiser_.dtype(), initialiser_.device()));
  }

  void read(const Variable& x, State& state) {
    mixer_->forward({.x = x, .context = {}, .key_mask = {}, .state = &state});
  }

  const int64_t batch_, width_;
  Generator generator_{1};
  Initialiser initialiser_;
  const std::unique_ptr<Mixer> mixer_;
  std::vector<Variable> run_;  // run_tokens times [B, 1, D]
};

/// A language model that reads random tokens, then generates: always the most probable one.
class ModelReader {
 public:
  using State = LanguageModelState;

  ModelReader(const std::string& title, const ModelConfig& config, int64_t batch, Device device)
      : title(title),
        batch_(batch),
        initialiser_(DType::float32, device, generator_),
        model_(config, initialiser_) {}

  const std::string title;
  Module& module() { return model_; }
  State initial_state(int64_t tokens) const { return model_.initial_state(batch_, tokens); }
  double run_flops(int64_t T) {
    double flops = 0;
    for (int64_t t = T + 1; t <= T + run_tokens; ++t) flops += model_.flops_per_token(t);
    return flops;
  }

  void read_random(int64_t count, State& state) {
    std::vector<int32_t> ids(batch_ * count);
    const auto vocabulary = static_cast<double>(model_.config().vocabulary);
    for (int32_t& id : ids) id = static_cast<int32_t>(generator_.uniform() * vocabulary);
    read(ids, state);
  }
  void decode_run(State& state) {
    std::vector<int32_t> ids(batch_);
    for (int64_t t = 0; t < run_tokens; ++t) ids = read(ids, state);
  }

 private:
  /// ids [B, T] -> the most probable token behind each text.
  std::vector<int32_t> read(const std::vector<int32_t>& ids, State& state) {
    const auto length = static_cast<int64_t>(ids.size()) / batch_;
    const std::vector<double> logits = model_.next_logits(Tensor::from(ids, {batch_, length}), state);
    const int64_t vocabulary = model_.config().vocabulary;
    std::vector<int32_t> next;
    for (int64_t text = 0; text < batch_; ++text) {
      const auto first = logits.begin() + text * vocabulary;
      next.push_back(sample_token({first, first + vocabulary}, {.temperature = 0}, generator_));
    }
    return next;
  }

  const int64_t batch_;
  Generator generator_{1};
  Initialiser initialiser_;
  LanguageModel model_;
};

std::string after(int64_t T) { return str(" after ", T, " tokens"); }

/// Bytes of the parameters: nearly all of them are read for every token.
int64_t parameter_bytes(Module& module) { return module.parameter_count() * size_bytes(DType::float32); }

/// The state behind so many random tokens, with room for a run more.
template <class Reader>
typename Reader::State state_after(int64_t tokens, Reader& reader) {
  typename Reader::State state = reader.initial_state(tokens + run_tokens);
  while (state.position < tokens) {
    reader.read_random(std::min(piece_tokens, tokens - state.position), state);
  }
  return state;
}

template <class Reader>
Figure measure_token(Reader& reader, int64_t T, const DecodeOptions& o, const Measuring& measuring) {
  const typename Reader::State state = state_after(T, reader);
  Figure figure;
  figure.name = reader.title + after(T);
  figure.seconds = time_parts(measuring.seconds, [&]() -> std::vector<double> {
    typename Reader::State run_state = copy_of(state);
    const double start = clock_seconds(measuring.device);
    reader.decode_run(run_state);
    return {(clock_seconds(measuring.device) - start) / run_tokens};
  })[0];
  figure.flops = static_cast<double>(o.batch) * reader.run_flops(T) / run_tokens;
  figure.bytes = static_cast<double>(parameter_bytes(reader.module()) + reader.initial_state(T).bytes());
  figure.only_reads = true;
  figure.tokens = o.batch;
  return figure;
}

/// What follows from the figures of the fewest tokens and of the most.
template <class Reader>
void derive(const std::vector<int64_t>& lengths, const std::vector<Figure>& figures, Reader& reader,
            std::vector<Derived>& derived) {
  const int64_t fewest = lengths.front(), most = lengths.back();
  const auto state_bytes = [&](int64_t T) { return reader.initial_state(T).bytes(); };
  const auto add_state = [&](const std::string& when, int64_t T) {
    derived.push_back({reader.title + ", state" + when, static_cast<double>(state_bytes(T)), "bytes"});
  };
  if (fewest < most) {
    derived.push_back({str(reader.title, ", time at T=", most, " over T=", fewest),
                       figures.back().median_seconds() / figures.front().median_seconds(), ""});
  }
  const bool grows = state_bytes(fewest) != state_bytes(most);
  if (grows) add_state(after(fewest), fewest);
  add_state(grows || fewest == most ? after(most) : "", most);
  derived.push_back(
      {reader.title + ", parameters", static_cast<double>(reader.module().parameter_count()), ""});
}

/// The wanted ones of --lengths, ascending.
std::vector<int64_t> wanted_lengths(const std::string& title, const DecodeOptions& o,
                                    const Measuring& measuring) {
  const std::vector<int64_t> asked = parse_lengths(o.lengths);
  std::vector<int64_t> lengths;
  for (const int64_t T : std::set<int64_t>(asked.begin(), asked.end())) {
    if (measuring.wanted(title + after(T))) lengths.push_back(T);
  }
  return lengths;
}

template <class Reader>
void measure_reader(Reader& reader, const std::vector<int64_t>& lengths, const DecodeOptions& o,
                    const Measuring& measuring, Findings& findings) {
  std::vector<Figure> figures;
  for (const int64_t T : lengths) figures.push_back(measure_token(reader, T, o, measuring));
  derive(lengths, figures, reader, findings.derived);
  findings.figures.insert(findings.figures.end(), figures.begin(), figures.end());
}

/// The model whose every wanted figure can be measured: learned positions reach to the end of the longest.
ModelConfig model_for(const DecodeOptions& o) {
  const std::vector<int64_t> lengths = parse_lengths(o.lengths);
  ModelConfig config = o.model;
  config.context = *std::max_element(lengths.begin(), lengths.end()) + run_tokens;
  return config.resolved();
}

std::vector<MixerChoice> single_mixers(const std::string& pattern) {
  return pattern == "none" ? std::vector<MixerChoice>{} : causal_mixers(pattern);
}

}  // namespace

DecodeOptions::DecodeOptions() {
  model.vocabulary = 65;
  model.layers = 6;
  model.heads = 6;
  model.width = 384;
  model.positions = "none";
}

void DecodeOptions::validate() const {
  check_count("batch", batch, 1, 1 << 20);
  single_mixers(mixers);
  model_for(*this);
}

void declare_decode_options(CLI::App& app, DecodeOptions& o) {
  declare_model_options(app, o.model);
  const auto group = [&](auto* option) { option->group("Decoding"); };
  group(app.add_option("--vocabulary", o.model.vocabulary, "Distinct tokens of the model"));
  group(app.add_option("--batch", o.batch, "Sequences: B"));
  group(app.add_option("--lengths", o.lengths, "Tokens that have been read: T, one or several"));
  group(app.add_option(
      "--mixers", o.mixers,
      "Single mixers of the model's width and heads: all, none, or a pattern such as \"sdpa,gma\""));
}

Findings measure_decode(const DecodeOptions& options, const Measuring& measuring) {
  const NoGrad no_grad;
  Findings findings;
  for (const MixerChoice& choice : single_mixers(options.mixers)) {
    const std::vector<int64_t> lengths = wanted_lengths(mixer_title(choice), options, measuring);
    if (lengths.empty()) continue;
    findings.attempt(mixer_title(choice), [&] {
      MixerReader reader(choice, options, measuring.device);
      measure_reader(reader, lengths, options, measuring, findings);
    });
  }
  const std::string title = "model " + options.model.pattern;
  const std::vector<int64_t> lengths = wanted_lengths(title, options, measuring);
  if (lengths.empty()) return findings;
  findings.attempt(title, [&] {
    ModelReader reader(title, model_for(options), options.batch, measuring.device);
    measure_reader(reader, lengths, options, measuring, findings);
  });
  return findings;
}

}  // namespace mixgrad
