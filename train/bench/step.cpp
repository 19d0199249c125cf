#include "train/bench/step.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "nn/optimizer.h"
#include "tensor/allocator.h"
#include "tensor/cpu_info.h"
#include "tensor/error.h"
#include "train/memory.h"
#include "train/options.h"
#include "train/training_step.h"

namespace mixgrad {

namespace {

const char* phase_text(Phase phase) {
  switch (phase) {
    case Phase::forward:
      return "forward";
    case Phase::backward:
      return "backward";
    default:
      return "update";
  }
}

std::vector<int32_t> random_tokens(const StepOptions& options) {
  Generator generator(1, Stream::data);
  std::vector<int32_t> tokens(std::max<int64_t>(1 << 16, 2 * options.model.context));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(generator.uniform() * static_cast<double>(options.model.vocabulary));
  }
  return tokens;
}

/// A model in training, on random tokens.
class Training {
 public:
  Training(const StepOptions& options, Device device)
      : options_(options),
        tokens_(random_tokens(options)),
        initialiser_(DType::float32, device, weights_),
        model_(options.model, initialiser_),
        parameters_(model_.parameters()),
        optimizer_(parameters_, AdamWConfig{}) {}

  void step() {
    const StepBatches batches{.tokens = tokens_,
                              .B = options_.batch,
                              .T = options_.model.context,
                              .accumulate = options_.accumulate};
    const double loss = compute_gradients(model_, batches, optimizer_.steps(), &dropout_);
    const double norm = gradient_norm(parameters_);
    check(std::isfinite(loss) && std::isfinite(norm), "[bench] loss ", loss, ", gradient norm ", norm);
    optimizer_.step(1e-4, clip_scale(norm, options_.clip));
  }

  LanguageModel& model() { return model_; }

 private:
  const StepOptions options_;
  const std::vector<int32_t> tokens_;
  Generator weights_{1, Stream::parameters};
  Generator dropout_{1, Stream::dropout};
  Initialiser initialiser_;
  LanguageModel model_;
  std::vector<Parameter> parameters_;
  AdamW optimizer_;
};

/// While it lives, what is timed goes to `parts`.
class Watching {
 public:
  Watching(PartTimes& parts, Device device) {
    set_span_observer(
        [&parts](std::string_view name, Phase phase, double seconds) { parts.add(name, phase, seconds); },
        device);
  }
  ~Watching() { set_span_observer({}); }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;
};

/// Lets the most memory that this process has held start again from what it holds (Linux; else nothing).
void reset_process_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace

void StepOptions::validate() const {
  check_count("batch", batch, 1, 1 << 20);
  check_count("accumulate", accumulate, 1, 1 << 16);
  check_usage(clip >= 0, "[options] --clip: ", clip, "; allowed: 0 or more");
  model.validate();
}

void declare_step_options(CLI::App& app, StepOptions& o) {
  declare_model_options(app, o.model);
  const auto group = [&](auto* option) { option->group("Model"); };
  group(app.add_option("--context", o.model.context, "Tokens in a training sequence"));
  group(app.add_option("--vocabulary", o.model.vocabulary, "Distinct tokens"));
  group(app.add_option("--batch", o.batch, "Sequences in a forward pass"));
  group(app.add_option("--accumulate", o.accumulate, "Forward and backward passes in a step"));
  group(app.add_option("--clip", o.clip, "Largest gradient norm; 0: no clipping"));
}

void PartTimes::add(std::string_view name, Phase phase, double seconds) {
  std::vector<double>& times = seconds_[{phase, std::string(name)}];
  times.resize(steps_.size() + 1);
  times.back() += seconds;
}

void PartTimes::end_step(double seconds) { steps_.push_back(seconds); }

std::vector<Figure> PartTimes::figures() const {
  std::vector<Figure> figures;
  for (const auto& [part, times] : seconds_) {
    Figure figure;
    figure.name = str(part.second, ", ", phase_text(part.first));
    figure.seconds = times;
    figure.seconds.resize(steps_.size());
    figures.push_back(std::move(figure));
  }
  std::sort(figures.begin(), figures.end(),
            [](const Figure& a, const Figure& b) { return a.median_seconds() > b.median_seconds(); });
  return figures;
}

std::vector<double> PartTimes::sums() const {
  std::vector<double> sums(steps_.size());
  for (const auto& [part, times] : seconds_) {
    for (size_t step = 0; step < std::min(times.size(), sums.size()); ++step) sums[step] += times[step];
  }
  return sums;
}

double PartTimes::share_of_step() const {
  std::vector<double> shares = sums();
  for (size_t step = 0; step < shares.size(); ++step) shares[step] /= steps_[step];
  return spread_of(shares).median;
}

double step_flops(LanguageModel& model, int64_t sequences) {
  double sequence = 0;
  for (int64_t t = 1; t <= model.config().context; ++t) sequence += model.flops_per_token(t);
  return static_cast<double>(sequences) * (3 * sequence + model.learning_flops(model.config().context));
}

Findings measure_step(const StepOptions& options, const Measuring& measuring) {
  const Device device = measuring.device;
  Allocator& allocator = Allocator::of(device);
  allocator.trim();
  allocator.reset_peak();
  reset_process_peak();
  Training training(options, device);
  const int64_t sequences = options.batch * options.accumulate;

  Figure step;
  step.name = "step";
  step.seconds = time_calls(measuring.seconds, device, [&] { training.step(); });
  step.flops = step_flops(training.model(), sequences);
  step.tokens = sequences * options.model.context;
  step.peak_bytes = device == Device{} ? process_peak_bytes() : allocator.stats().peak_bytes;

  PartTimes parts;
  time_calls(measuring.seconds, device, [&] {
    const Watching watching(parts, device);
    const double start = clock_seconds(device);
    training.step();
    parts.end_step(clock_seconds(device) - start);
  });

  Figure sum;
  sum.name = "sum of parts";
  sum.seconds = parts.sums();
  Findings findings;
  for (Figure& figure : parts.figures()) {
    if (measuring.wanted(figure.name)) findings.figures.push_back(std::move(figure));
  }
  findings.figures.insert(findings.figures.begin(), {step, sum});
  findings.derived = {
      {"sum of parts over step", sum.median_seconds() / step.median_seconds(), "(1: nothing is hidden)"},
      {"the same within each watched step", parts.share_of_step(), ""},
      {"parameters", static_cast<double>(training.model().parameter_count()), ""},
      {"peak memory in tensors", static_cast<double>(allocator.stats().peak_bytes) / (1 << 20), "MiB"},
      {"peak memory of the process", static_cast<double>(process_peak_bytes()) / (1 << 20), "MiB"},
  };
  return findings;
}

}  // namespace mixgrad
