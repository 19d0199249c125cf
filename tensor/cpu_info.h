// What this machine computes with.
#pragma once

#include <sched.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace mixgrad {

/// The linear-algebra library and the kernels that it chose for this CPU.
std::string blas_description();
/// Number of hardware threads that this process may use and the vector instructions of the kernels.
std::string cpu_description();
/// How many hardware threads this process may use: those of its affinity mask, or fewer where the processor
/// time of its control groups is limited. The time of 7.65 cores is for 7 threads, of less than one for one:
/// a thread more, and all of them would stand still at the end of each period, in the midst of a loop.
int usable_cores();
/// The same on a machine with so many in the mask, whose /proc and /sys are below the folder `root`.
int usable_cores(int allowed, const std::filesystem::path& root);
/// How many CPUs are in the calling thread's affinity mask, which a function like sched_getaffinity reads.
int allowed_cores(int (*read_mask)(pid_t, size_t, cpu_set_t*) = sched_getaffinity);
/// How many threads programs allow: four for each usable core. More would only wait for each other.
int64_t most_threads();

/// Bytes of addresses that this process may have (ulimit -v); the largest number without a limit.
int64_t address_limit_bytes();
/// Most memory that this process has ever held, as the operating system counts it.
int64_t process_peak_bytes();

}  // namespace mixgrad
