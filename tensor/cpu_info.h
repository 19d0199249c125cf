// What this machine computes with.
#pragma once

#include <cstdint>
#include <string>

namespace mixgrad {

/// The linear-algebra library and the kernels that it chose for this CPU.
std::string blas_description();
/// Number of hardware threads that this process may use and the vector instructions that this build uses.
std::string cpu_description();
/// How many hardware threads this process may use: those of its affinity mask, or fewer where the processor
/// time of its container is limited (rounded up).
int usable_cores();
/// How many threads programs allow: four for each usable core. More would only wait for each other.
int64_t most_threads();

/// Most memory that this process has ever held, as the operating system counts it.
int64_t process_peak_bytes();

}  // namespace mixgrad
