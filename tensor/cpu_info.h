// What this machine computes with.
#pragma once

#include <cstdint>
#include <string>

namespace mixgrad {

/// The linear-algebra library and the kernels that it chose for this CPU.
std::string blas_description();
/// Number of hardware threads and the vector instructions that this build uses.
std::string cpu_description();
/// How many threads the parallel loops use.
int thread_count();
/// Sets it; at least 1.
void set_thread_count(int threads);
/// What programs allow: four for each hardware thread. More would only wait for each other.
int64_t most_threads();

/// Most memory that this process has ever held, as the operating system counts it.
int64_t process_peak_bytes();

}  // namespace mixgrad
