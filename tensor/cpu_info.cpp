#include "tensor/cpu_info.h"

#include <cblas.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>

#include "tensor/error.h"

namespace mixgrad {

namespace {

/// Processors that the container of this process pays for, by control groups 2 or 1; infinity when it doesn't
/// say.
double container_cores() {
  double quota = 0,
         period = 0;  // microseconds of processor time, and in how long; not a number or -1: no limit
  if (std::ifstream("/sys/fs/cgroup/cpu.max") >> quota >> period && quota > 0) return quota / period;
  if (std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota && quota > 0 &&
      std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period)
    return quota / period;
  return std::numeric_limits<double>::infinity();
}

int allowed_cores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

std::string blas_description() {
  return str(openblas_get_config(), ", ", openblas_get_corename(), " kernels");
}

std::string cpu_description() {
#if defined(__AVX512F__)
  const char* vectors = "AVX-512";
#elif defined(__AVX2__)
  const char* vectors = "AVX2";
#else
  const char* vectors = "baseline vectors";
#endif
  return str(usable_cores(), " hardware threads, ", vectors);
}

int usable_cores() {
  static const int cores =
      static_cast<int>(std::clamp(std::ceil(container_cores()), 1.0, static_cast<double>(allowed_cores())));
  return cores;
}

int64_t most_threads() { return 4 * int64_t{usable_cores()}; }

int64_t process_peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace mixgrad
