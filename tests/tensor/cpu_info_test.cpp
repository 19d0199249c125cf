// How many threads: what affinity masks and the quotas of control groups leave of a machine.
#include "tensor/cpu_info.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/train/scratch_files.h"

namespace mixgrad {
namespace {

constexpr int machine = 64;  // CPUs

/// A folder with files like those of /proc and /sys.
class FakeRoot {
 public:
  FakeRoot(const std::string& groups, const std::string& mounts) {
    write("proc/self/cgroup", groups);
    write("proc/self/mountinfo", "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n" + mounts);
  }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((folder_ / path).parent_path());
    write_bytes(folder_ / path, text + "\n");
  }
  int cores() const { return usable_cores(machine, folder_.path()); }

 private:
  ScratchFolder folder_;
};

/// A machine with control groups 2 whose process is in a group of a service.
FakeRoot nested() {
  return {"0::/system.slice/train.service/inner",
          "30 21 0:26 / /sys/fs/cgroup rw,nosuid shared:9 master:3 - cgroup2 cgroup2 rw,nsdelegate"};
}
const std::string slice = "sys/fs/cgroup/system.slice/";

/// One with control groups 1, where the controllers are mounted two by two.
FakeRoot nested_1() {
  return {"12:cpuset:/\n4:cpu,cpuacct:/docker/7f/inner\n1:name=systemd:/docker/7f\n0::/elsewhere",
          "30 21 0:26 / /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"
          "31 21 0:27 / /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
          "32 21 0:28 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw"};
}
const std::string cpu_1 = "sys/fs/cgroup/cpu,cpuacct/";

int mask_of_4096_cpus(pid_t, size_t bytes, cpu_set_t* mask) {
  if (bytes < 4096 / 8) {
    errno = EINVAL;
    return -1;
  }
  std::memset(mask, 0, bytes);
  for (const int cpu : {0, 1023, 1024, 4095}) CPU_SET_S(cpu, bytes, mask);
  return 0;
}

int no_mask(pid_t, size_t, cpu_set_t*) { return -1; }

}  // namespace

TEST_CASE("tensor/cpu_info: without a quota all CPUs of the mask are used") {
  CHECK(usable_cores(machine, ScratchFolder().path()) == machine);  // not a file
  CHECK(nested().cores() == machine);
  CHECK(nested_1().cores() == machine);
  const FakeRoot root = nested();
  root.write(slice + "cpu.max", "max 100000");
  CHECK(root.cores() == machine);
  root.write(slice + "cpu.max", "9900000 100000");
  CHECK(root.cores() == machine);
}

TEST_CASE("tensor/cpu_info: a quota counts in whole cores, at least one") {
  const FakeRoot root = nested();
  for (const auto& row : {std::pair{"300000 100000", 3},
                          {"765000 100000", 7},
                          {"799999 100000", 7},
                          {"50000 100000", 1},
                          {"1000 1000000", 1},
                          {"700000 100000", 7}}) {
    CAPTURE(row.first);
    root.write(slice + "train.service/inner/cpu.max", row.first);
    CHECK(root.cores() == row.second);
  }
}

TEST_CASE("tensor/cpu_info: the least quota of a group and of those around it applies") {
  for (const std::string group : {"", "train.service/", "train.service/inner/"}) {
    CAPTURE(group);
    const FakeRoot root = nested();
    for (const std::string other : {"", "train.service/", "train.service/inner/"})
      root.write(slice + other + "cpu.max", "600000 100000");
    root.write(slice + group + "cpu.max", "250000 100000");
    CHECK(root.cores() == 2);
  }
  const FakeRoot root = nested();  // a container's own root, and a group beside ours
  root.write("sys/fs/cgroup/cpu.max", "500000 100000");
  root.write(slice + "other.service/cpu.max", "100000 100000");
  CHECK(root.cores() == 5);
}

TEST_CASE("tensor/cpu_info: control groups 1") {
  const FakeRoot root = nested_1();
  root.write(cpu_1 + "cpu.cfs_quota_us", "-1");
  root.write(cpu_1 + "cpu.cfs_period_us", "100000");
  CHECK(root.cores() == machine);
  root.write(cpu_1 + "docker/cpu.cfs_quota_us", "950000");
  root.write(cpu_1 + "docker/cpu.cfs_period_us", "100000");
  CHECK(root.cores() == 9);
  root.write(cpu_1 + "docker/7f/inner/cpu.cfs_quota_us", "90000");
  CHECK(root.cores() == 9);  // of what period is not said
  root.write(cpu_1 + "docker/7f/inner/cpu.cfs_period_us", "20000");
  CHECK(root.cores() == 4);
}

TEST_CASE("tensor/cpu_info: a container that sees its own group as the root") {
  // The group is named as on the host, and the folder shows it or one around it.
  const FakeRoot root("4:cpu:/docker/7f/inner",
                      "31 21 0:27 /docker/7f /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "600000");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  CHECK(root.cores() == 6);
  root.write("sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "300000");
  root.write("sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000");
  CHECK(root.cores() == 3);
  // A group outside of what the container sees.
  const FakeRoot moved("0::/../inner", "30 21 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
  moved.write("sys/fs/cgroup/cpu.max", "600000 100000");
  moved.write("sys/fs/cgroup/inner/cpu.max", "300000 100000");
  moved.write("sys/fs/inner/cpu.max", "300000 100000");
  CHECK(moved.cores() == 6);
}

TEST_CASE("tensor/cpu_info: what can't be read is no limit") {
  for (const std::string line : {"", "max", "300000", "300000 0", "-300000 100000", "0 100000", "many few",
                                 "nan 100000", "300000 -1"}) {
    CAPTURE(line);
    const FakeRoot root = nested();
    root.write(slice + "train.service/cpu.max", line);
    CHECK(root.cores() == machine);
    root.write(slice + "cpu.max", "200000 100000");
    CHECK(root.cores() == 2);
  }
  const std::string mount = "30 21 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
  for (const std::string groups : {"", "0", "0:", "::", "0:/system.slice", "0::", "nothing of the kind"}) {
    CAPTURE(groups);
    const FakeRoot root(groups, mount);
    root.write(slice + "cpu.max", "200000 100000");
    CHECK(root.cores() == machine);
  }
  for (const std::string mounts :
       {"", "30", "30 21 0:26 / /sys/fs/cgroup", "30 21 0:26 / /sys/fs/cgroup rw -",
        "30 21 0:26 / /sys/fs/cgroup rw - ext4 cgroup2 rw"}) {
    CAPTURE(mounts);
    const FakeRoot root("0::/system.slice", mounts);
    root.write(slice + "cpu.max", "200000 100000");
    CHECK(root.cores() == machine);
  }
}

TEST_CASE("tensor/cpu_info: affinity masks of any size") {
  CHECK(allowed_cores(mask_of_4096_cpus) == 4);
  CHECK(allowed_cores(no_mask) >= 1);
  CHECK(allowed_cores() >= usable_cores());
  int alone = 0;
  std::thread([&alone] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(sched_getcpu(), &mask);
    if (sched_setaffinity(0, sizeof mask, &mask) == 0) alone = allowed_cores();
  }).join();
  CHECK(alone == 1);
}

}  // namespace mixgrad
