#include "tensor/cpu_info.h"

#include <cblas.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "tensor/cpu/vector_instructions.h"
#include "tensor/error.h"

namespace mixgrad {

namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

/// Whether a word is in a list with commas between its words; the empty word is in the empty list alone.
bool lists(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

/// This process's group in the hierarchy with a controller, or, without one, in control groups 2.
std::string own_group(const std::filesystem::path& root, const std::string& controller) {
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {  // number:controllers:group
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second != line.npos && lists(line.substr(first + 1, second - first - 1), controller))
      return line.substr(second + 1);
  }
  return "";
}

/// How many cores' time the group of a folder may take, by the files of control groups 2 or 1.
double quota(const std::filesystem::path& group) {
  double time = 0, period = 0;  // microseconds; the time is "max" or -1 without a limit
  const bool known = std::ifstream(group / "cpu.max") >> time >> period ||
                     (std::ifstream(group / "cpu.cfs_quota_us") >> time &&
                      std::ifstream(group / "cpu.cfs_period_us") >> period);
  return known && time > 0 && period > 0 ? time / period : unlimited;
}

/// The least quota of the groups from one to the root of its hierarchy, or to where a container's view of it
/// ends: in the folder `mount` the group `shown` is seen.
double least_quota(const std::filesystem::path& mount, const std::string& shown, const std::string& group) {
  std::filesystem::path inner = std::filesystem::path(group).lexically_relative(shown);
  if (!inner.empty() && *inner.begin() == "..") inner.clear();  // a group that isn't seen there
  double least = quota(mount);
  for (; !inner.empty(); inner = inner.parent_path()) least = std::min(least, quota(mount / inner));
  return least;
}

/// How many cores' time all control groups of this process leave it.
double quota_cores(const std::filesystem::path& root) {
  double least = unlimited;
  std::ifstream lines(root / "proc/self/mountinfo");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, parent, device, shown, mount, word, type;
    words >> number >> parent >> device >> shown >> mount;
    while (words >> word && word != "-") continue;  // any number of optional fields
    words >> type;
    if (type != "cgroup" && type != "cgroup2") continue;  // one without the controller has none of the files
    const std::string group = own_group(root, type == "cgroup" ? "cpu" : "");
    const std::filesystem::path folder = root / std::filesystem::path(mount).relative_path();
    least = std::min(least, least_quota(folder, shown, group));
  }
  return least;
}

}  // namespace

std::string blas_description() {
  return str(openblas_get_config(), ", ", openblas_get_corename(), " kernels");
}

std::string cpu_description() { return str(usable_cores(), " hardware threads, ", vector_instructions()); }

int allowed_cores(int (*read_mask)(pid_t, size_t, cpu_set_t*)) {
  // A mask that is too small for the machine is refused.
  for (size_t sets = 1; sets <= 1024; sets *= 2) {  // of 1024 CPUs each
    std::vector<cpu_set_t> mask(sets);
    if (read_mask(0, sets * sizeof(cpu_set_t), mask.data()) != 0) continue;
    int cores = 0;
    for (const cpu_set_t& set : mask) cores += CPU_COUNT(&set);
    return cores;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int usable_cores(int allowed, const std::filesystem::path& root) {
  return static_cast<int>(std::clamp(std::floor(quota_cores(root)), 1.0, static_cast<double>(allowed)));
}

int usable_cores() {
  static const int cores = usable_cores(allowed_cores(), "/");
  return cores;
}

int64_t most_threads() { return 4 * int64_t{usable_cores()}; }

int64_t address_limit_bytes() {
  constexpr rlim_t most = std::numeric_limits<int64_t>::max();
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0) return most;
  return static_cast<int64_t>(std::min(limit.rlim_cur, most));
}

int64_t process_peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace mixgrad
