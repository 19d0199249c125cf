// Parallel loops on the CPU whose results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mixgrad {

/// Calls body(begin, end) for consecutive blocks of `block` items that cover [0, count), in parallel.
///
/// The blocks depend on the sizes alone, never on the number of threads: a body that sums within its block
/// sums in the same order on every machine. Bodies must not throw.
template <class Body>
void parallel_blocks(int64_t count, int64_t block, const Body& body) {
  const int64_t blocks = (count + block - 1) / block;
#pragma omp parallel for schedule(dynamic) if (blocks > 1)
  for (int64_t index = 0; index < blocks; ++index) {
    body(index * block, std::min(count, (index + 1) * block));
  }
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
