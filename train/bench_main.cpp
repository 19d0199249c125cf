// bench: measures this machine, and how close kernels, mixers and whole training steps come to what it can
// do.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tensor/cpu_info.h"
#include "tensor/parallel.h"
#include "train/atomic_file.h"
#include "train/bench/decode.h"
#include "train/bench/gemm.h"
#include "train/bench/kernels.h"
#include "train/bench/mixers.h"
#include "train/bench/step.h"
#include "train/cli.h"
#include "train/options.h"

namespace mixgrad {

namespace {

/// What a command is: its options, and what it measures.
struct Command {
  std::string name, summary;
  std::function<void(CLI::App&)> declare;
  std::function<void()> validate;
  std::function<Findings(const Measuring&)> measure;
  size_t slowest = 0;  // figures that end its table; BenchSet
};

Findings measure_peak_rates(const Measuring& measuring) {
  Findings findings;
  const auto add = [&](std::string name, double rate, const char* unit) {
    if (measuring.wanted(name)) findings.derived.push_back({std::move(name), rate / 1e9, unit});
  };
  const auto add_all = [&](const Peaks& peaks, const std::string& arithmetic, const std::string& with) {
    add(arithmetic + with, peaks.flops_s, "GFLOP/s");
    for (const MemoryLevel& level : peaks.levels) {
      add(level.name + ", read" + with, level.read_bytes_s, "GB/s");
      add(level.name + ", copy" + with, level.copy_bytes_s, "GB/s");
    }
  };
  if (measuring.device != Device{}) {
    const Peaks peaks = measure_device_peaks(measuring.device, measuring.seconds);
    add_all(peaks, peaks.arithmetic, "");
    return findings;
  }
  const int threads = thread_count();
  for (const int count : {1, threads}) {
    add_all(measure_peaks(count, measuring.seconds), "fp32 multiply-adds",
            str(", ", count, count == 1 ? " thread" : " threads"));
    if (threads == 1) break;
  }
  return findings;
}

/// The commands, and where their options are kept.
class Commands {
 public:
  Commands()
      : commands_{
            {"peaks", "What this machine can do at most: arithmetic, and each level of its memory",
             [](CLI::App&) {}, [] {},
             [](const Measuring& measuring) { return measure_peak_rates(measuring); }},
            {"gemm", "Matrix products of a training step, ours beside OpenBLAS",
             [this](CLI::App& app) { declare_gemm_options(app, gemm_); }, [this] { gemm_.validate(); },
             [this](const Measuring& measuring) { return measure_gemm(gemm_, measuring); }},
            {"kernels", "Every family of kernels, forward and backward",
             [this](CLI::App& app) { declare_kernels_options(app, kernels_); },
             [this] { kernels_.validate(); },
             [this](const Measuring& measuring) { return measure_kernels(kernels_, measuring); }, 5},
            {"mixers", "Mixers over lengths, whole and without projections, forward and backward",
             [this](CLI::App& app) { declare_mixers_options(app, mixers_); }, [this] { mixers_.validate(); },
             [this](const Measuring& measuring) { return measure_mixers(mixers_, measuring); }},
            {"decode", "One token after so many others, and the state that it is decoded from",
             [this](CLI::App& app) { declare_decode_options(app, decode_); }, [this] { decode_.validate(); },
             [this](const Measuring& measuring) { return measure_decode(decode_, measuring); }},
            {"step", "A whole training step of a language model, and the sum of its parts",
             [this](CLI::App& app) { declare_step_options(app, step_); }, [this] { step_.validate(); },
             [this](const Measuring& measuring) { return measure_step(step_, measuring); }},
        } {}
  Commands(const Commands&) = delete;
  Commands& operator=(const Commands&) = delete;

  const std::vector<Command>& all() const { return commands_; }

  /// Throws UsageError that lists the commands.
  const Command& find(const std::string& name) const {
    std::vector<std::string> names;
    for (const Command& command : commands_) {
      if (command.name == name) return command;
      names.push_back(command.name);
    }
    const std::string likely = nearest(name, names);
    throw UsageError(str(
        "[bench] unknown command '", name, "'",
        likely.empty() ? str("; allowed: ", join(names), ", all") : str("; did you mean '", likely, "'?")));
  }

 private:
  GemmOptions gemm_;
  KernelsOptions kernels_;
  MixersOptions mixers_;
  DecodeOptions decode_;
  StepOptions step_;
  std::vector<Command> commands_;
};

/// All commands with all of their options.
void print_help(const Commands& commands) {
  std::cout
      << "Measures this machine, and how close kernels, mixers and whole training steps come to what it "
         "can do.\nUsage: bench COMMAND [OPTIONS]; bench all runs every command with its defaults\n\n";
  for (const Command& command : commands.all()) {
    CLI::App app(command.summary, "bench " + command.name);
    command.declare(app);
    format_help(app);
    std::cout << app.help() << '\n';
  }
  CLI::App common("Options of every command", "bench COMMAND");
  BenchOptions options;
  declare_bench_options(common, options);
  add_version(common);
  add_mixers_help(common);
  format_help(common);
  std::cout << common.help();
}

/// Measures the commands' sets and shows each when it is done; whether nothing failed.
bool run_commands(const std::vector<Command>& commands, const BenchOptions& options) {
  const int threads = thread_count();
  const Device device = parse_device(options.device);
  std::cout << machine_text(threads, device) << std::flush;
  nlohmann::ordered_json sets = nlohmann::ordered_json::array();
  bool complete = true;
  for (const Command& command : commands) {
    const SetResult result = run_set({command.name, command.measure, command.slowest}, options,
                                     instruments(threads, std::min(0.1, options.seconds), device));
    print_set(std::cout, result);
    sets.push_back(to_json(result));
    complete = complete && result.measured.findings.failures.empty();
  }
  if (options.json.empty()) return complete;
  const nlohmann::ordered_json all = {{"machine", machine_json(threads, device)}, {"sets", sets}};
  write_file_atomically(options.json, all.dump(2) + "\n");
  return complete;
}

int bench(int argc, char** argv) {
  const Commands commands;
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help-mixers") {
    std::cout << mixers_help();
    return 0;
  }
  if (name == "--help" || name == "-h") {
    print_help(commands);
    return 0;
  }
  const bool all = name == "all";
  const std::vector<Command> chosen =
      all || name == "--version" ? commands.all() : std::vector{commands.find(name)};
  CLI::App app(all ? "Every command with its defaults" : chosen[0].summary, "bench " + name);
  BenchOptions options;
  if (chosen.size() == 1) chosen[0].declare(app);
  declare_bench_options(app, options);
  add_version(app);
  add_mixers_help(app);
  if (!parse(app, name == "--version" ? argc : argc - 1, name == "--version" ? argv : argv + 1)) return 0;
  options.validate();
  for (const Command& command : chosen) command.validate();
  if (options.threads > 0) set_thread_count(static_cast<int>(options.threads));
  set_matrix_precision(parse_precision(options.precision), parse_device(options.device));
  return run_commands(chosen, options) ? 0 : 1;
}

}  // namespace

}  // namespace mixgrad

int main(int argc, char** argv) { return mixgrad::run_program(argc, argv, mixgrad::bench); }
