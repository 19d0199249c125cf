// The options of `train`: one struct, filled from the command line and a config file.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/config.h"
#include "nn/optimizer.h"
#include "tensor/kernels/gemm.h"

namespace CLI {
class App;
}

namespace mixgrad {

struct TrainOptions {
  // data
  std::filesystem::path data;
  std::string tokenizer = "byte";
  double train_fraction = 0.9;
  // model; its vocabulary comes from the tokenizer
  ModelConfig model;
  // optimisation
  int64_t batch = 12;      // sequences in a forward pass
  int64_t accumulate = 1;  // forward and backward passes in a step
  int64_t steps = 2000;    // counted from the start of the run
  double minutes = 0;      // > 0: only as many steps as take about so long
  double learning_rate = 1e-3;
  double min_learning_rate = -1;  // -1: a tenth of learning_rate
  int64_t warmup = -1;            // steps; -1: a tenth of them, at most 100
  AdamWConfig adamw;
  double clip = 1;  // largest gradient norm; 0: no clipping
  uint64_t seed = 1;
  // watching
  int64_t eval_every = 250;        // steps
  int64_t eval_batches = 0;        // 0: the whole validation part
  int64_t checkpoint_every = 500;  // steps
  int64_t sample_every = 0;        // steps; 0: only at the end
  int64_t log_every = 10;          // steps; a terminal shows every step
  // running
  std::string program = "train";  // as it was called
  std::filesystem::path out = "runs/latest";
  bool resume = false;
  bool more_minutes = false;  // the minutes begin with this process: no plan of the checkpoint counts
  std::string device = "auto";
  int64_t threads = 0;  // 0: as many as the machine has
  std::string precision = "f32";
  bool check_finite = false;

  /// What makes the run what it is: the value of every option, by the name that the command line knows it by,
  /// but of those that say where and how it is run (out, resume, config).
  nlohmann::ordered_json effective() const;

  /// Tokens in one optimiser step.
  int64_t tokens_per_step() const { return batch * accumulate * model.context; }
  /// The schedule of a run of so many steps.
  CosineSchedule schedule(int64_t total_steps) const;
  /// Throws UsageError that names the first option which is out of range, its value, and what is allowed.
  void validate() const;
};

/// What --precision says of the matrix products: f32, or bf16.
inline constexpr const char* precision_help =
    "Of matrix products: f32, or bf16: operands rounded to bfloat16, where the device has instructions for "
    "it";
/// Throws UsageError for anything but "f32" and "bf16".
MatrixPrecision parse_precision(const std::string& text);

/// Throws UsageError that names the option, as it is written behind "--", for a value out of range.
void check_count(const char* option, int64_t value, int64_t minimum, int64_t maximum);

/// Throws UsageError unless a file can be written there, or the path is empty: none is wanted.
void check_json_path(const std::string& json);

/// Declares the options that make a model, but its context and its vocabulary, in the group "Model".
void declare_model_options(CLI::App& app, ModelConfig& model);
/// Adds --help-mixers, which prints the mixers that a pattern can name, with their options.
void add_mixers_help(CLI::App& app);
std::string mixers_help();

/// More steps than any run has: what --steps is where only --minutes was given.
inline constexpr int64_t most_steps = 1'000'000'000;

/// Reads the command line and the config file that it names; the command line wins. With --resume, what
/// neither says is as it was stored in the run's run.json; where one of --steps and --minutes is given,
/// neither of the two is taken from there. Returns false when --help or --version was printed. Throws
/// UsageError.
bool parse_train_options(int argc, char** argv, TrainOptions& options);

}  // namespace mixgrad
