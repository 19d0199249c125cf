#include "train/bench/conditions.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>

#include "tensor/error.h"

namespace mixgrad {

namespace {

/// Busy time of all processors, from /proc/stat: user, nice, system, (idle, iowait,) irq, softirq, steal.
/// 0 where there is no such file.
double all_cpu_seconds() {
  std::ifstream file("/proc/stat");
  std::string name;
  file >> name;
  double busy = 0, ticks = 0;
  for (int column = 0; column < 8 && file >> ticks; ++column) {
    const bool idle = column == 3 || column == 4;
    if (!idle) busy += ticks;
  }
  return busy / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double own_cpu_seconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    ::getrusage(who, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
      seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    }
  }
  return seconds;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double change(double before, double after) { return std::abs(after - before) / std::max(before, after); }

std::string percent(double share) { return str(std::round(1000 * share) / 10, " %"); }

std::string disturbance(const Conditions& conditions) {
  const Peaks &before = conditions.before, &after = conditions.after;
  const double flops = change(before.flops_s, after.flops_s);
  const double copy = change(before.levels.back().copy_bytes_s, after.levels.back().copy_bytes_s);
  std::vector<std::string> faults;
  if (!(conditions.others_share <= most_others_share))
    faults.push_back(str("other processes took ", percent(conditions.others_share), " of the machine"));
  if (!(flops <= most_flops_change))
    faults.push_back(str("the peak of arithmetic changed by ", percent(flops)));
  if (!(copy <= most_copy_change)) faults.push_back(str("the copy rate changed by ", percent(copy)));
  return join(faults);
}

}  // namespace

Instruments instruments(int threads, double seconds, Device device) {
  return {[=] {
            return device == Device{} ? measure_peaks(threads, seconds)
                                      : measure_device_peaks(device, seconds);
          },
          all_cpu_seconds, own_cpu_seconds, wall_seconds,
          static_cast<double>(std::max(1u, std::thread::hardware_concurrency()))};
}

Measured measure_undisturbed(const Instruments& instruments, int attempts,
                             const std::function<Findings()>& measure,
                             const std::function<void(const std::string&)>& announce) {
  for (int attempt = 1;; ++attempt) {
    Measured result;
    Conditions& conditions = result.conditions;
    conditions.attempts = attempt;
    const double wall = instruments.wall_seconds();
    const double all = instruments.all_cpu_seconds(), own = instruments.own_cpu_seconds();
    conditions.before = instruments.peaks();
    result.findings = measure();
    conditions.after = instruments.peaks();
    const double others = (instruments.all_cpu_seconds() - all) - (instruments.own_cpu_seconds() - own);
    const double machine = (instruments.wall_seconds() - wall) * instruments.processors;
    conditions.others_share = std::max(0.0, others / machine);
    conditions.disturbance = disturbance(conditions);
    if (conditions.disturbance.empty() || attempt >= attempts) return result;
    announce(conditions.disturbance);
  }
}

}  // namespace mixgrad
