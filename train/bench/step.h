// A whole training step of a language model, and the parts that it consists of.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/profile.h"
#include "models/language_model.h"
#include "train/bench/command.h"

namespace mixgrad {

/// What is trained; names and defaults are those of `train`.
struct StepOptions {
  ModelConfig model;
  int64_t batch = 12;
  int64_t accumulate = 1;
  double clip = 1;

  StepOptions() { model.vocabulary = 65; }
  /// Throws UsageError that names the first option which is out of range.
  void validate() const;
};

void declare_step_options(CLI::App& app, StepOptions& options);

/// Adds up what an observer of spans is told, step by step.
class PartTimes {
 public:
  void add(std::string_view name, Phase phase, double seconds);
  /// Ends a step that took so long as a whole.
  void end_step(double seconds);

  /// A figure for each part, "linear, backward", with its seconds in each step; the longest first.
  std::vector<Figure> figures() const;
  /// The seconds that all parts of each step took together.
  std::vector<double> sums() const;
  /// The median over the steps of that sum over the step's own time: 1 when nothing is hidden.
  double share_of_step() const;

 private:
  std::map<std::pair<Phase, std::string>, std::vector<double>> seconds_;  // [step], as far as it was reached
  std::vector<double> steps_;
};

/// FLOPs that a training step on so many sequences of the model's context needs: three times those of the
/// forward pass, each token counted at its own position, and those of learning while reading. Work that isn't
/// needed, such as the masked half of attention, isn't counted.
double step_flops(LanguageModel& model, int64_t sequences);

/// Figures "step", its parts, and their sum; peak memory of the step.
Findings measure_step(const StepOptions& options, const Measuring& measuring);

}  // namespace mixgrad
