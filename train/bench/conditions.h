// Whether the machine was quiet while something was measured.
#pragma once

#include <functional>
#include <string>

#include "train/bench/figure.h"
#include "train/bench/peaks.h"

namespace mixgrad {

/// How the machine is looked at; the tests put others in their place.
struct Instruments {
  std::function<Peaks()> peaks;
  /// Processor seconds that the whole machine, and that this process with its ended children, have used up.
  std::function<double()> all_cpu_seconds, own_cpu_seconds;
  std::function<double()> wall_seconds;
  double processors = 1;
};

/// The real ones. The peaks are those of the GPU, or of so many threads, each measured for so many seconds.
Instruments instruments(int threads, double seconds, Device device = {});

/// What a set of figures was measured under.
struct Conditions {
  Peaks before, after;
  double others_share = 0;  // of the machine's processor time, taken by other processes meanwhile
  int attempts = 1;         // the last of which counts
  std::string disturbance;  // what was wrong with it; empty: nothing
};

/// A set is disturbed when other processes took more than this share of the machine, or the peaks before and
/// after differ by more than this much.
constexpr double most_others_share = 0.05;
constexpr double most_flops_change = 0.05;
constexpr double most_copy_change = 0.15;  // of the largest level; neighbours on the host take from it

struct Measured {
  Findings findings;
  Conditions conditions;
};

/// Measures, between two looks at the peaks. A disturbed set is thrown away and measured again, up to so many
/// attempts; the last one is returned as it is, and its conditions say so. `announce` is told of each that is
/// thrown away.
Measured measure_undisturbed(const Instruments& instruments, int attempts,
                             const std::function<Findings()>& measure,
                             const std::function<void(const std::string&)>& announce);

}  // namespace mixgrad
