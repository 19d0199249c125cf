// Parallel loops on the CPU whose results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mixgrad {

/// How many threads the parallel loops use, the calling one included. At first all that thread_count() could
/// use: usable_cores() of tensor/cpu_info.h.
int thread_count();
/// Sets it; at least 1. Not from within a parallel loop.
void set_thread_count(int threads);
/// Which of them the calling thread is, in [0, thread_count()): no two threads of one loop have the same.
int thread_index();

/// A loop's body without its type: call(body, begin, end).
using BlockFunction = void (*)(const void* body, int64_t begin, int64_t end);
/// What parallel_blocks does.
void run_blocks(int64_t count, int64_t block, BlockFunction call, const void* body) noexcept;

/// Calls body(begin, end) for consecutive blocks of `block` items that cover [0, count), in parallel.
///
/// The blocks depend on the sizes alone, never on the number of threads: a body that sums within its block
/// sums in the same order on every machine. Which thread computes which block is left to chance. A loop
/// inside a body, or beside one of another thread, runs on its calling thread alone. Bodies must not throw.
/// In a measurement of memory (tensor/measure.h) loops are skipped.
///
/// In a body, on whichever thread it runs, subnormal numbers are 0, as operands and as results; behind the
/// loop the calling thread does with them what it did before (docs/numerics.md).
template <class Body>
void parallel_blocks(int64_t count, int64_t block, const Body& body) {
  const auto call = [](const void* erased, int64_t begin, int64_t end) {
    (*static_cast<const Body*>(erased))(begin, end);
  };
  run_blocks(count, block, call, &body);
}

/// Calls body(index) for each index in [0, count), in parallel: for tasks that are large in themselves.
template <class Body>
void parallel_tasks(int64_t count, const Body& body) {
  parallel_blocks(count, 1, [&](int64_t index, int64_t) { body(index); });
}

/// How many rows make a block of about 16 Ki elements: enough work to be worth a thread's while.
inline int64_t rows_per_block(int64_t columns) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, columns));
}

}  // namespace mixgrad
