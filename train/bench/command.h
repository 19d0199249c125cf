// What the commands of `bench` have in common: options, the order of events, and how figures are shown.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "train/bench/conditions.h"
#include "train/bench/peer.h"

namespace CLI {
class App;
}

namespace mixgrad {

/// Options of every command.
struct BenchOptions {
  std::string device = "auto";
  int64_t threads = 0;  // 0: all that the machine has
  std::string precision = "f32";
  double seconds = 1;    // of each figure, in each round
  std::string filter;    // regular expression; empty: all figures
  std::string json;      // file; empty: none
  std::string against;   // command of a peer; empty: none
  int64_t rounds = 5;    // of ours and the peer's
  int64_t attempts = 3;  // to measure undisturbed

  /// Throws UsageError that names the first option which is out of range.
  void validate() const;
};

/// Declares them.
void declare_bench_options(CLI::App& app, BenchOptions& options);

/// How a command is to measure.
struct Measuring {
  double seconds;                                  // of each figure
  std::function<bool(const std::string&)> wanted;  // whether a figure of this name is
  Device device = {};
};

/// One set of figures.
struct BenchSet {
  std::string name;
  std::function<Findings(const Measuring&)> measure;
  size_t slowest = 0;  // so many figures, the slowest by share of the peak, are shown once more
};

/// What came of a set.
struct SetResult {
  std::string name;
  Measured measured;
  std::vector<Comparison> comparisons;  // empty without a peer
  size_t slowest = 0;                   // as in BenchSet
};

/// Measures a set, again where it was disturbed, in turns with the peer if there is one. Throws UsageError
/// when the filter matches nothing; Error for a peer that fails.
SetResult run_set(const BenchSet& set, const BenchOptions& options, const Instruments& instruments);

/// The set as a table.
void print_set(std::ostream& out, const SetResult& result);
/// The same, with every quantity in the unit that its name ends in.
nlohmann::ordered_json to_json(const SetResult& result);

/// Machine and build: two lines, or an object.
std::string machine_text(int threads, Device device);
nlohmann::ordered_json machine_json(int threads, Device device);

}  // namespace mixgrad
