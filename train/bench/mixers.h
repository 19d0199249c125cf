// Sequence mixers over lengths: whole modules of the registry, and their cores, which are given queries, keys
// and values.
#pragma once

#include <string>
#include <vector>

#include "train/bench/command.h"

namespace mixgrad {

struct MixersOptions {
  int64_t batch = 1;
  std::string lengths = "256,512,1024,2048,4096,8192";
  int64_t heads = 6;
  int64_t head_size = 64;
  int64_t components = 128;    // K, of what has components
  std::string cores = "all";   // names, all or none
  std::string mixers = "all";  // a pattern of mixers with options, all or none
  int64_t chunk = 64;          // tokens that the cores compute at once
  int64_t one_by_one = 4096;   // length at which chunks are held against single tokens; 0: not

  /// Throws UsageError that names the first option which is out of range.
  void validate() const;
};

void declare_mixers_options(CLI::App& app, MixersOptions& options);

/// Figures "core NAME T=N" and "mixer PATTERN T=N", forward and backward together, and each apart; the slope
/// over T of each; where each is at least as fast as softmax attention; and how much faster chunks are than
/// tokens one by one.
Findings measure_mixers(const MixersOptions& options, const Measuring& measuring);

/// Names of the cores.
std::vector<std::string> core_names();

}  // namespace mixgrad
