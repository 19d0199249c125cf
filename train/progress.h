// What training shows while it runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "train/metrics.h"

namespace mixgrad {

/// One live line on a terminal, rewritten at every step; plain lines, one in `log_every`, in a pipe.
class Progress {
 public:
  explicit Progress(int64_t log_every);

  /// Steps done and planned in all, 0 where that isn't known yet: for the time that remains.
  void plan(int64_t done, int64_t total);
  /// Shows a step; one that was evaluated stays on a terminal as well.
  void show(const MetricsRow& row);
  /// A line that stays, above the live one.
  void say(const std::string& line);

 private:
  using Clock = std::chrono::steady_clock;

  std::string line(const MetricsRow& row) const;
  std::string remaining(int64_t step) const;

  const int64_t log_every_;
  const bool terminal_;
  int64_t first_step_ = 0;
  int64_t total_steps_ = 0;
  Clock::time_point start_;
  bool line_open_ = false;
};

/// 950 ms, 12 s, 3 min 05 s, 2 h 10 min
std::string duration_text(double seconds);
/// 512 B, 1.5 MiB
std::string bytes_text(double bytes);
/// A word as it can be typed into a shell, in quotes where it needs them.
std::string shell_word(const std::string& word);

}  // namespace mixgrad
