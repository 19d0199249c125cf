// What training shows while it runs.
#pragma once

#include <cstdint>
#include <string>

#include "train/metrics.h"

namespace mixgrad {

/// One live line on a terminal, rewritten at every step; plain lines, one in `log_every`, in a pipe.
class Progress {
 public:
  Progress(int64_t log_every, int64_t total_steps);

  /// The steps that are planned in all; may change once, when they are derived from --minutes.
  void set_total(int64_t total_steps) { total_steps_ = total_steps; }
  /// Shows a step; always in a line of its own when it was evaluated.
  void show(const MetricsRow& row);
  /// A line that stays, above the live one.
  void say(const std::string& line);

 private:
  const int64_t log_every_;
  const bool terminal_;
  int64_t total_steps_;
  double mean_step_ms_ = 0;  // exponential mean, for the time that remains
  bool line_open_ = false;
};

/// 950 ms, 12 s, 3 min 05 s, 2 h 10 min
std::string duration_text(double seconds);
/// 512 B, 1.5 MiB
std::string bytes_text(int64_t bytes);

}  // namespace mixgrad
