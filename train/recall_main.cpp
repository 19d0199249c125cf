// recall: how many pairs of keys and values each mixer can remember.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "tensor/cpu_info.h"
#include "tensor/parallel.h"
#include "train/atomic_file.h"
#include "train/cli.h"
#include "train/options.h"
#include "train/recall.h"

namespace mixgrad {

namespace {

struct Request {
  RecallOptions options;
  std::string mixers, pairs = "4,8,16", device = "auto", json;
  int64_t seeds = 3;
  int64_t threads = 0;
};

/// What came of one seed: a result, or why there is none.
struct SeedOutcome {
  std::optional<RecallResult> result;
  std::string failure;
  bool diverged = false;
};

SeedOutcome try_seed(const RecallOptions& options, const MixerChoice& mixer, uint64_t seed) {
  try {
    return {run_recall(options, mixer, seed), "", false};
  } catch (const Diverged& error) {
    return {std::nullopt, error.what(), true};
  } catch (const std::exception& error) {
    return {std::nullopt, error.what(), false};
  }
}

std::vector<RecallResult> results_of(const std::vector<SeedOutcome>& seeds) {
  std::vector<RecallResult> results;
  for (const SeedOutcome& seed : seeds) {
    if (seed.result) results.push_back(*seed.result);
  }
  return results;
}

/// "2 of 3 seeds diverged", nothing when all came to their end.
std::string failures_text(const std::vector<SeedOutcome>& seeds) {
  const auto diverged = std::ranges::count_if(seeds, &SeedOutcome::diverged);
  const auto failed = std::ranges::count_if(seeds, [](const SeedOutcome& s) { return !s.result; }) - diverged;
  std::vector<std::string> parts;
  if (diverged > 0) parts.push_back(str(diverged, " of ", seeds.size(), " seeds diverged"));
  if (failed > 0) parts.push_back(str(failed, " of ", seeds.size(), " seeds failed"));
  return join(parts);
}

/// The mean over seeds, and the smallest and largest.
struct Spread {
  double mean = 0, least = 1, most = 0;
};

Spread spread_of(const std::vector<RecallResult>& results, size_t pairs) {
  Spread spread;
  for (const RecallResult& result : results) {
    const double value = result.accuracy[pairs];
    spread.mean += value / static_cast<double>(results.size());
    spread.least = std::min(spread.least, value);
    spread.most = std::max(spread.most, value);
  }
  return spread;
}

std::vector<MixerChoice> chosen_mixers(const std::string& pattern) {
  if (!pattern.empty()) {
    std::vector<MixerChoice> chosen = parse_pattern(pattern, any_layers);
    for (const MixerChoice& choice : chosen)
      check_usage(choice.kind->forms.causal, "[recall] mixer ", choice.kind->name, " has no causal form");
    return chosen;
  }
  std::vector<MixerChoice> all;
  for (const MixerKind& kind : mixer_kinds()) {
    if (kind.forms.causal) all.push_back(parse_pattern(kind.name, any_layers)[0]);
  }
  return all;
}

void print_header(const RecallOptions& options) {
  std::cout << "share of queries answered rightly, mean (least-most of the seeds)\n"
            << "chance: " << std::setprecision(3) << 1.0 / static_cast<double>(options.task.values)
            << " without reading; with P pairs, 1/P for a guess among the last values told"
            << (options.task.tellings > 1
                    ? str(", 1/", options.task.tellings, " for one among those of the key")
                    : "")
            << "\n\n"
            << std::left << std::setw(40) << "mixer" << std::right << std::setw(12) << "parameters"
            << std::setw(12) << "state bytes" << std::setw(9) << "s/seed";
  for (const int64_t pairs : options.pairs) std::cout << std::setw(20) << str(pairs, " pairs");
  std::cout << std::endl;
}

/// The seeds that came to their end, and how many did not.
void print_row(const RecallOptions& options, const std::string& name, const std::vector<SeedOutcome>& seeds) {
  const std::vector<RecallResult> results = results_of(seeds);
  std::cout << std::left << std::setw(40) << name << std::right << std::fixed << std::setprecision(1);
  if (results.empty()) {
    std::cout << std::setw(12) << '-' << std::setw(12) << '-' << std::setw(9) << '-';
  } else {
    double seconds = 0;
    for (const RecallResult& each : results) seconds += each.seconds / static_cast<double>(results.size());
    std::cout << std::setw(12) << results[0].parameters << std::setw(12) << results[0].state_bytes
              << std::setw(9) << seconds;
  }
  const bool all_diverged = std::ranges::all_of(seeds, &SeedOutcome::diverged);
  for (size_t i = 0; i < options.pairs.size(); ++i) {
    std::string cell = all_diverged ? "diverged" : "failed";
    if (!results.empty()) {
      const Spread spread = spread_of(results, i);
      cell = str(std::fixed, std::setprecision(3), spread.mean, " (", spread.least, '-', spread.most, ')');
    }
    std::cout << std::setw(20) << cell;
  }
  const std::string failures = failures_text(seeds);
  std::cout << (failures.empty() ? "" : "  ") << failures << std::endl;
}

/// A seed without a result has a failure in its place; a mixer without any has no sizes.
nlohmann::ordered_json json_of(const std::string& name, const std::vector<SeedOutcome>& seeds) {
  nlohmann::ordered_json json = {{"mixer", name}}, runs = nlohmann::ordered_json::array();
  for (const SeedOutcome& seed : seeds) {
    if (!seed.result) {
      runs.push_back({{"failure", seed.failure}});
      continue;
    }
    json["parameters"] = seed.result->parameters;
    json["state_bytes"] = seed.result->state_bytes;
    runs.push_back({{"accuracy", seed.result->accuracy}, {"seconds", seed.result->seconds}});
  }
  json["seeds"] = runs;
  return json;
}

int run(int argc, char** argv) {
  Request request;
  RecallOptions& o = request.options;
  o.model.layers = 1;
  o.model.heads = 2;
  o.model.width = 64;
  o.model.conv = true;
  o.model.positions = "none";
  CLI::App app("Trains small models to recall values by their keys, and says how many pairs each remembers.",
               "recall");
  app.option_defaults()->always_capture_default();
  app.add_option("--mixers", request.mixers, "Comma-separated, with options as in --mixer; else all causal");
  app.add_option("--pairs", request.pairs, "Numbers of pairs, to train on and to ask for");
  app.add_option("--keys", o.task.keys, "How many keys there are");
  app.add_option("--values", o.task.values, "How many values there are");
  app.add_option("--tellings", o.task.tellings,
                 "How often each key is told before it is asked for, always anew");
  app.add_option("--layers", o.model.layers, "Blocks of the model");
  app.add_option("--heads", o.model.heads, "Heads of each mixer");
  app.add_option("--width", o.model.width, "Width of the model");
  app.add_flag("--conv,!--no-conv", o.model.conv, "Mixers see a short convolution of each block's input");
  app.add_option("--positions", o.model.positions, "learned, sinusoidal, rope or none");
  app.add_option("--steps", o.steps, "Training steps");
  app.add_option("--batch", o.batch, "Sequences in a step");
  app.add_option("--lr", o.learning_rate, "Highest learning rate");
  app.add_option("--test-rows", o.test_rows, "Sequences asked after training, for each number of pairs");
  app.add_option("--seeds", request.seeds, "Seeds 1, 2, ...: as many models of each mixer");
  app.add_option("--device", request.device, "cpu, cuda, cuda:N, or auto: a GPU if there is one");
  app.add_option("--threads", request.threads, "0: all that the machine has");
  app.add_option("--json", request.json, "File for the figures of every seed");
  add_version(app);
  add_mixers_help(app);
  if (!parse(app, argc, argv)) return 0;
  o.pairs = parse_numbers("--pairs", request.pairs, 1, 1 << 20);
  o.validate();
  check_json_path(request.json);
  check_count("seeds", request.seeds, 1, 1 << 20);
  check_count("threads", request.threads, 0, most_threads());
  if (request.threads > 0) set_thread_count(static_cast<int>(request.threads));
  o.device = parse_device(request.device);

  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  const std::vector<MixerChoice> mixers = chosen_mixers(request.mixers);
  for (const MixerChoice& mixer : mixers) check_recall(o, mixer);
  print_header(o);
  bool complete = true;
  for (const MixerChoice& mixer : mixers) {
    std::vector<SeedOutcome> seeds;
    for (int64_t seed = 1; seed <= request.seeds; ++seed) {
      seeds.push_back(try_seed(o, mixer, static_cast<uint64_t>(seed)));
      if (seeds.back().result) continue;
      complete = false;
      std::cerr << seeds.back().failure << std::endl;
    }
    print_row(o, mixer.text(), seeds);
    all.push_back(json_of(mixer.text(), seeds));
    if (request.json.empty()) continue;
    const nlohmann::ordered_json so_far = {{"pairs", o.pairs}, {"mixers", all}};
    write_file_atomically(request.json, so_far.dump(2) + "\n");
  }
  return complete ? 0 : 1;
}

}  // namespace

}  // namespace mixgrad

int main(int argc, char** argv) { return mixgrad::run_program(argc, argv, mixgrad::run); }
