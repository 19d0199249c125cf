// Running a grid of simulated threads, one after the other, on one thread of the CPU.
//
// A thread that has to wait keeps its stack, and another one goes on: each thread runs as far as it can
// before any other does, so that a barrier that is missing matters as much as it ever could. The fiber whose
// thread has ended takes up the next thread, so that a kernel without barriers needs one stack.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/simulator/accesses.h"
#include "cuda/simulator/device_code.h"

namespace mixgrad::simulator {

/// Of a block, as compute capability 9.0 has it; 8.0 has 163 KiB.
constexpr int64_t max_shared_bytes = 227 * 1024;

/// What to run: kernel arguments are behind `closure`, which run_threads knows the type of.
struct Grid {
  std::string kernel;
  dim3 blocks, threads;
  int64_t dynamic_shared_bytes = 0;
  void (*run_threads)(const void* closure) = nullptr;
  const void* closure = nullptr;
};

/// The order in which threads and blocks start, and go on after a barrier.
enum class Order { forward, reverse, shuffled };

struct Options {
  Order order = Order::forward;
  uint32_t seed = 1;              // of Order::shuffled
  int64_t end_blocks = 0;         // unless 0, only so many blocks at each end of the grid are run
  CallSite skipped_barrier = {};  // this call of __syncthreads or __syncwarp does nothing
  std::vector<StoreSite> dropped_stores = {};  // these change nothing; in ascending order
};
extern Options options;

/// One kernel that ran.
struct LaunchRecord {
  std::string kernel;
  dim3 blocks, threads;
  int64_t shared_bytes = 0;  // of a block, as far as it took them
  int64_t bytes_read = 0;    // of device memory, by all threads together
  int64_t bytes_written = 0;
  int64_t shared_bytes_read = 0;
  std::vector<CallSite> barriers;  // call sites that were reached
  std::vector<StoreSite> stores;   // in ascending order
};
/// All kernels that ran since clear_launch_log().
const std::vector<LaunchRecord>& launch_log();
void clear_launch_log();

/// Throws Error when sizes are beyond a device's limits.
void check_limits(const Grid& grid);
/// Runs all threads to their end. Throws Error for what a thread did wrong, naming kernel, block and thread;
/// what the kernel wrote until then stays.
void run_grid(const Grid& grid);

/// For run_threads: takes up the next thread that hasn't started; false when there is none.
bool begin_thread();
void end_thread();

/// Ends the launch with an error of the thread that runs.
[[noreturn]] void fail_thread(std::string&& message);

/// "softmax.cu:34"
std::ostream& operator<<(std::ostream& out, const CallSite& site);

/// Runs `kernel`, a closure over its arguments, for one thread after the other. The arguments move to the
/// stack, where a thread may read them.
template <class Kernel>
void run_threads(const void* closure) {
  const Kernel kernel = *static_cast<const Kernel*>(closure);
  while (begin_thread()) {
    kernel();
    end_thread();
  }
}

/// "softmax_kernel<float>" from what the compiler calls the function that launches it.
std::string kernel_name(std::string_view pretty_function);

}  // namespace mixgrad::simulator
