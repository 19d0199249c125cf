// What is measured: times of calls, and what follows from them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensor/device.h"
#include "train/bench/peaks.h"

namespace mixgrad {

/// Of several measurements of one thing.
struct Spread {
  double median = 0, min = 0, max = 0;
};
/// Throws Error when there are none.
Spread spread_of(std::vector<double> values);

/// One thing that was timed.
struct Figure {
  std::string name;             // unique within a set
  std::vector<double> seconds;  // of each call
  double flops = 0;             // of one call; 0: not counted
  double bytes = 0;             // that one call must move, operands read and results written; 0: not counted
  bool only_reads = false;  // hardly any of them are written: the peak is the rate of reading, not copying
  int64_t tokens = 0;       // that one call is about; 0: none
  int64_t peak_bytes = 0;   // most memory that the process held; 0: not measured

  double median_seconds() const { return spread_of(seconds).median; }
};

/// The time that the peaks allow at least, over the time that was taken: by arithmetic or by memory,
/// whichever bounds it. 0 when neither was counted.
double share_of_peak(const Figure& figure, const Peaks& peaks);

/// Of the figures that have a share of the peak, the `count` with the least, the least first; equal ones stay
/// in order.
std::vector<Figure> slowest_by_share(const std::vector<Figure>& figures, const Peaks& peaks, size_t count);

/// A number that is no time: a slope, a ratio.
struct Derived {
  std::string name;
  double value;
  std::string meaning;  // the unit, or the range that is wanted
};

/// What one set of measurements gave.
struct Findings {
  std::vector<Figure> figures;
  std::vector<Derived> derived;
  std::vector<std::string> failures{};  // a line for each member of the set that could not be measured

  /// Measures one member of the set; when that throws Error or runs out of memory, it is a failure, and the
  /// rest of the set goes on.
  void attempt(const std::string& member, const std::function<void()>& measure);
  /// Adds the times of another round of the same measurements; what is derived is of the last round.
  void append(Findings&& round);
};

/// Seconds of a clock, read when the device has done all that it was given.
double clock_seconds(Device device);

/// Seconds that each of several calls took until the device was done: after one that warms caches and the
/// allocator up, as many as fit into the given time, 3 at least.
std::vector<double> time_calls(double seconds, Device device, const std::function<void()>& call);

/// Seconds that each of several calls took, by their own account of so many numbers each: [number][call].
std::vector<std::vector<double>> time_parts(double seconds, const std::function<std::vector<double>()>& call);

/// The slope of log(y) over log(x), by least squares: 1 for what grows in proportion. Two points at least.
double log_log_slope(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace mixgrad
