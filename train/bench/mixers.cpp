#include "train/bench/mixers.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>

#include "autograd/ops/attention.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/gma.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/recurrence.h"
#include "autograd/tape.h"
#include "tensor/error.h"
#include "train/bench/whole_mixers.h"
#include "train/cli.h"
#include "train/options.h"

namespace mixgrad {

namespace {

/// What the cores compute with.
struct CoreInputs {
  Variable q, k, v;             // [B, T, H, d]
  Variable beta, gate;          // [B, T, H], before their sigmoids
  Variable channel_gate;        // [B, T, H, d], likewise
  Variable mean, omega, alpha;  // a Gaussian mixture a head: [H, K, d] twice, [H, K]
  int64_t chunk;

  double scale() const { return 1 / std::sqrt(static_cast<double>(q.shape()[3])); }
  RecurrenceOptions additive() const { return {.scale = scale(), .chunk = chunk, .final_state = false}; }
  DeltaRuleOptions delta() const { return {.scale = scale(), .chunk = chunk, .final_state = false}; }
};

/// A core: its output, and the FLOPs that its definition needs for T tokens of a head in the forward pass.
struct Core {
  std::string name;
  bool recurrent;  // reads CoreInputs::chunk
  Variable (*output)(const CoreInputs& in);
  double (*flops)(double T, double d, double K);
};

double write_and_read(double T, double d, double) { return 4 * T * d * d; }
double correct_write_and_read(double T, double d, double) { return 6 * T * d * d; }

const std::vector<Core>& cores() {
  static const std::vector<Core> all = {
      {"sdpa", false, [](const CoreInputs& in) { return attention(in.q, in.k, in.v, {.causal = true}); },
       [](double T, double d, double) { return 2 * T * (T + 1) * d; }},
      {"gma", true,
       [](const CoreInputs& in) {
         return gma(in.q, in.k, in.v, in.mean, in.omega, in.alpha, {.chunk = in.chunk, .final_state = false})
             .output;
       },
       [](double T, double d, double K) { return T * K * (6 * d + 4 * d); }},
      {"linear", true,
       [](const CoreInputs& in) {
         return recurrence(elu_plus_one(in.q), elu_plus_one(in.k), in.v,
                           {.normalise = true, .chunk = in.chunk, .final_state = false})
             .output;
       },
       write_and_read},
      {"gla", true,
       [](const CoreInputs& in) {
         return recurrence(in.q, in.k, in.v, in.additive(), log_sigmoid(in.channel_gate)).output;
       },
       write_and_read},
      {"delta", true,
       [](const CoreInputs& in) {
         return delta_rule(in.q, l2_normalize(in.k), in.v, sigmoid(in.beta), in.delta()).output;
       },
       correct_write_and_read},
      {"gated_delta", true,
       [](const CoreInputs& in) {
         return delta_rule(in.q, l2_normalize(in.k), in.v, sigmoid(in.beta), in.delta(), log_sigmoid(in.gate))
             .output;
       },
       correct_write_and_read},
      {"kda", true,
       [](const CoreInputs& in) {
         return delta_rule(in.q, l2_normalize(in.k), in.v, sigmoid(in.beta), in.delta(),
                           log_sigmoid(in.channel_gate))
             .output;
       },
       correct_write_and_read},
  };
  return all;
}

const Core& find_core(const std::string& name) {
  const auto found =
      std::find_if(cores().begin(), cores().end(), [&](const Core& core) { return core.name == name; });
  check_usage(found != cores().end(), "[bench] unknown core '", name, "'; known: ", join(core_names()));
  return *found;
}

std::vector<const Core*> chosen_cores(const MixersOptions& options) {
  std::vector<const Core*> chosen;
  if (options.cores == "none") return chosen;
  for (const std::string& name : options.cores == "all" ? core_names() : split_list(options.cores)) {
    chosen.push_back(&find_core(name));
  }
  return chosen;
}

std::vector<MixerChoice> chosen_mixers(const MixersOptions& options) {
  if (options.mixers == "none") return {};
  std::vector<MixerChoice> chosen = causal_mixers(options.mixers);
  if (options.mixers != "all") return chosen;
  for (MixerChoice& choice : chosen) {
    const auto components = choice.options.find("components");
    if (components != choice.options.end()) components->second = static_cast<double>(options.components);
  }
  return chosen;
}

CoreInputs core_inputs(const MixersOptions& o, int64_t T, int64_t chunk, Device device) {
  Generator generator(1);
  const auto normal = [&](const Shape& shape) {
    return Variable(mixgrad::normal(shape, 1, generator, DType::float32, device), true);
  };
  const Shape heads{o.batch, T, o.heads, o.head_size}, scalars{o.batch, T, o.heads};
  const Shape mixture{o.heads, o.components, o.head_size};
  return {.q = normal(heads),
          .k = normal(heads),
          .v = normal(heads),
          .beta = normal(scalars),
          .gate = normal(scalars),
          .channel_gate = normal(heads),
          .mean = normal(mixture),
          .omega = normal(mixture),
          .alpha = normal({o.heads, o.components}),
          .chunk = chunk};
}

std::vector<Variable*> leaves(CoreInputs& in) {
  return {&in.q, &in.k, &in.v, &in.beta, &in.gate, &in.channel_gate, &in.mean, &in.omega, &in.alpha};
}

/// A function to be timed: its output, and how to forget what backward left in its inputs.
struct Subject {
  std::string name;  // with its length
  int64_t tokens;
  double flops;  // forward
  std::function<Variable()> output;
  std::function<void()> forget;
};

/// Forward and backward together, and each apart: as many of the three figures as are wanted.
std::vector<Figure> measure_passes(const Subject& subject, const Measuring& measuring) {
  const std::vector<std::string> names = {subject.name, subject.name + ", forward",
                                          subject.name + ", backward"};
  if (std::none_of(names.begin(), names.end(), measuring.wanted)) return {};
  Tensor cotangent;
  const auto times = time_parts(measuring.seconds, [&]() -> std::vector<double> {
    const double start = clock_seconds(measuring.device);
    const Variable y = subject.output();
    const double middle = clock_seconds(measuring.device);
    if (!cotangent.defined()) cotangent = Tensor::full(y.shape(), 1, y.dtype(), measuring.device);
    backward({y}, {cotangent});
    const double end = clock_seconds(measuring.device);
    subject.forget();
    return {end - start, middle - start, end - middle};
  });
  const std::vector<double> passes = {3, 1, 2};  // in units of a forward pass
  std::vector<Figure> figures;
  for (size_t i = 0; i < names.size(); ++i) {
    if (!measuring.wanted(names[i])) continue;
    Figure figure;
    figure.name = names[i];
    figure.seconds = times[i];
    figure.flops = passes[i] * subject.flops;
    figure.tokens = subject.tokens;
    figures.push_back(std::move(figure));
  }
  return figures;
}

std::string core_title(const Core& core) { return "core " + core.name; }
std::string at_length(const std::string& title, int64_t T) { return str(title, " T=", T); }

std::vector<Figure> measure_core(const Core& core, const MixersOptions& o, int64_t T, int64_t chunk,
                                 const std::string& title, const Measuring& measuring) {
  CoreInputs in = core_inputs(o, T, chunk, measuring.device);
  const double flops =
      static_cast<double>(o.batch * o.heads) *
      core.flops(static_cast<double>(T), static_cast<double>(o.head_size), static_cast<double>(o.components));
  return measure_passes({.name = at_length(title, T),
                         .tokens = o.batch * T,
                         .flops = flops,
                         .output = [&] { return core.output(in); },
                         .forget =
                             [&] {
                               for (Variable* leaf : leaves(in)) leaf->zero_grad();
                             }},
                        measuring);
}

std::vector<Figure> measure_mixer(const MixerChoice& choice, const MixersOptions& o, int64_t T,
                                  const Measuring& measuring) {
  Generator generator(1);
  Initialiser initialiser(DType::float32, measuring.device, generator);
  const int64_t width = o.heads * o.head_size;
  const std::unique_ptr<Mixer> mixer = make_mixer(choice, width, o.heads, false, initialiser);
  Variable x(normal({o.batch, T, width}, 1, generator, DType::float32, measuring.device), true);
  return measure_passes({.name = at_length(mixer_title(choice), T),
                         .tokens = o.batch * T,
                         .flops = static_cast<double>(o.batch) * module_flops(*mixer, 1, T),
                         .output = [&] { return mixer->forward({.x = x, .context = {}, .key_mask = {}}); },
                         .forget =
                             [&] {
                               x.zero_grad();
                               mixer->zero_grad();
                             }},
                        measuring);
}

/// Of one title: the lengths that were measured, and the median seconds at each.
struct Curve {
  std::vector<double> lengths, seconds;
};

Curve curve_of(const std::vector<Figure>& figures, const std::string& title,
               const std::vector<int64_t>& lengths) {
  Curve curve;
  for (const int64_t T : lengths) {
    const std::string name = at_length(title, T);
    const auto figure =
        std::find_if(figures.begin(), figures.end(), [&](const Figure& f) { return f.name == name; });
    if (figure == figures.end()) continue;
    curve.lengths.push_back(static_cast<double>(T));
    curve.seconds.push_back(figure->median_seconds());
  }
  return curve;
}

/// Slopes, and where each is at least as fast as `attention`, a title.
void derive(const std::vector<std::string>& titles, const std::string& attention,
            const std::vector<int64_t>& lengths, Findings& findings) {
  const Curve other = curve_of(findings.figures, attention, lengths);
  for (const std::string& title : titles) {
    const Curve curve = curve_of(findings.figures, title, lengths);
    if (curve.lengths.size() < 2) continue;
    findings.derived.push_back(
        {title + ", log-log slope over T", log_log_slope(curve.lengths, curve.seconds), ""});
    if (title == attention || other.lengths != curve.lengths) continue;
    for (size_t i = 0; i < curve.lengths.size(); ++i) {
      if (curve.seconds[i] > other.seconds[i]) continue;
      findings.derived.push_back({str(title, ", as fast as ", attention, " from T"), curve.lengths[i], ""});
      break;
    }
  }
}

void measure_one_by_one(const Core& core, const MixersOptions& o, const Measuring& measuring,
                        Findings& findings) {
  const int64_t T = o.one_by_one;
  const std::string title = core_title(core);
  const std::string single = at_length(title + " one by one", T);
  if (!measuring.wanted(single)) return;
  const Measuring always{measuring.seconds, [](const std::string&) { return true; }, measuring.device};
  std::vector<Figure> chunks = measure_core(core, o, T, o.chunk, title, always);
  std::vector<Figure> tokens = measure_core(core, o, T, 1, title + " one by one", always);
  findings.derived.push_back({str(title, " T=", T, ", tokens one by one over chunks"),
                              tokens[0].median_seconds() / chunks[0].median_seconds(), ""});
  findings.figures.push_back(std::move(tokens[0]));
}

}  // namespace

std::vector<std::string> core_names() {
  std::vector<std::string> names;
  for (const Core& core : cores()) names.push_back(core.name);
  return names;
}

void MixersOptions::validate() const {
  check_count("batch", batch, 1, 1 << 20);
  check_count("heads", heads, 1, 1 << 16);
  check_count("head-size", head_size, 1, 1 << 16);
  check_count("components", components, 1, 1 << 16);
  check_count("chunk", chunk, 1, 1 << 16);
  check_count("one-by-one", one_by_one, 0, int64_t{1} << 24);
  parse_lengths(lengths);
  const bool no_core = chosen_cores(*this).empty(), no_mixer = chosen_mixers(*this).empty();
  check_usage(!no_core || !no_mixer, "[bench] neither a core nor a mixer is left to measure");
}

void declare_mixers_options(CLI::App& app, MixersOptions& o) {
  app.option_defaults()->always_capture_default();
  const auto group = [&](auto* option) { option->group("Mixers"); };
  group(app.add_option("--batch", o.batch, "Sequences: B"));
  group(app.add_option("--lengths", o.lengths, "Tokens in a sequence: T, one or several"));
  group(app.add_option("--heads", o.heads, "Heads: H"));
  group(app.add_option("--head-size", o.head_size, "Size of a head: d; the width is H d"));
  group(app.add_option("--components", o.components,
                       "Components: K, of the core gma and of all mixers that have them"));
  group(app.add_option("--cores", o.cores,
                       "Cores, without projections: all, none, or a list of " + join(core_names())));
  group(app.add_option("--mixers", o.mixers,
                       "Whole mixers: all, none, or a pattern such as \"sdpa,gma(components=32)\""));
  group(app.add_option("--chunk", o.chunk, "Tokens that a core computes at once"));
  group(app.add_option("--one-by-one", o.one_by_one,
                       "Length at which cores are held against chunks of one token; 0: none"));
}

Findings measure_mixers(const MixersOptions& options, const Measuring& measuring) {
  const std::vector<int64_t> lengths = parse_lengths(options.lengths);
  Findings findings;
  const auto add = [&](std::vector<Figure> figures) {
    for (Figure& figure : figures) findings.figures.push_back(std::move(figure));
  };
  std::vector<std::string> titles;
  for (const Core* core : chosen_cores(options)) {
    titles.push_back(core_title(*core));
    for (const int64_t T : lengths) {
      findings.attempt(at_length(titles.back(), T), [&] {
        add(measure_core(*core, options, T, options.chunk, titles.back(), measuring));
      });
    }
  }
  derive(titles, "core sdpa", lengths, findings);
  titles.clear();
  for (const MixerChoice& choice : chosen_mixers(options)) {
    titles.push_back(mixer_title(choice));
    for (const int64_t T : lengths) {
      findings.attempt(at_length(titles.back(), T),
                       [&] { add(measure_mixer(choice, options, T, measuring)); });
    }
  }
  derive(titles, "mixer sdpa", lengths, findings);
  if (options.one_by_one == 0) return findings;
  for (const Core* core : chosen_cores(options)) {
    if (!core->recurrent) continue;
    findings.attempt(core_title(*core) + " one by one",
                     [&] { measure_one_by_one(*core, options, measuring, findings); });
  }
  return findings;
}

}  // namespace mixgrad
