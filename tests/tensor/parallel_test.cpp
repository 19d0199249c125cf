// The thread pool: every block once, whatever the numbers of blocks and threads.
#include "tensor/parallel.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tensor/cpu_info.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {

namespace {

/// So many threads for one scope.
class Threads {
 public:
  explicit Threads(int threads) : before_(thread_count()) { set_thread_count(threads); }
  ~Threads() { set_thread_count(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace

TEST_CASE("tensor/parallel: blocks cover the range once with any number of threads") {
  for (const int threads : {1, 2, 3, 7, 4 * usable_cores() + 1}) {
    const Threads scope(threads);
    CHECK(thread_count() == threads);
    for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t block : {1, 3, 64, 2000}) {
        CAPTURE(threads);
        CAPTURE(count);
        CAPTURE(block);
        std::vector<int> visits(count);
        std::atomic<int64_t> crooked{0};
        parallel_blocks(count, block, [&](int64_t begin, int64_t end) {
          if (begin % block != 0 || end != std::min(begin + block, count)) ++crooked;
          for (int64_t i = begin; i < end; ++i) ++visits[i];
        });
        CHECK(visits == std::vector<int>(count, 1));
        CHECK(crooked == 0);
      }
    }
  }
}

TEST_CASE("tensor/parallel: many tiny loops in a row lose nothing") {
  // Each loop reads what the one before it wrote: a block that is late, or left over from another loop,
  // shows.
  constexpr int64_t loops = 20'000;
  for (const int threads : {2, 5}) {
    const Threads scope(threads);
    std::vector<int64_t> values(threads + 2), next(values.size());
    for (int64_t loop = 0; loop < loops; ++loop) {
      parallel_tasks(static_cast<int64_t>(values.size()),
                     [&](int64_t i) { next[i] = values[(i + 1) % values.size()] + 1; });
      values.swap(next);
    }
    CHECK(values == std::vector<int64_t>(values.size(), loops));
  }
}

TEST_CASE("tensor/parallel: a loop in a loop runs on the thread that reaches it") {
  const Threads scope(3);
  std::vector<int64_t> sums(50);
  std::atomic<int> elsewhere{0};
  parallel_tasks(50, [&](int64_t outer) {
    const std::thread::id here = std::this_thread::get_id();
    const int index = thread_index();
    parallel_blocks(100, 10, [&](int64_t begin, int64_t end) {
      if (std::this_thread::get_id() != here || thread_index() != index) ++elsewhere;
      for (int64_t i = begin; i < end; ++i) sums[outer] += i;
    });
  });
  CHECK(elsewhere == 0);
  CHECK(sums == std::vector<int64_t>(50, 4950));
}

TEST_CASE("tensor/parallel: no two threads of a loop have the same index") {
  const Threads scope(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> clashes{0};
  for (int loop = 0; loop < 500; ++loop) {
    parallel_tasks(16, [&](int64_t) {
      const int index = thread_index();
      if (index < 0 || index >= 4 || inside[index].fetch_add(1) != 0) ++clashes;
      std::this_thread::yield();
      inside[index].fetch_sub(1);
    });
  }
  CHECK(clashes == 0);
  CHECK(thread_index() == 0);
}

TEST_CASE("tensor/parallel: loops of several threads at once do not mix") {
  const Threads scope(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&wrong, caller] {
      for (int loop = 0; loop < 500; ++loop) {
        std::vector<int> marks(20, -1);
        parallel_tasks(20, [&](int64_t i) { marks[i] = caller; });
        if (marks != std::vector<int>(20, caller)) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
}

TEST_CASE("tensor/parallel: fewer than one thread is refused") {
  CHECK(error_of([] { set_thread_count(0); }) == "[threads] 0 threads; allowed: at least 1");
}

}  // namespace mixgrad
