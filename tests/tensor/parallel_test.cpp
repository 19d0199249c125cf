// The thread pool: every block once, whatever the numbers of blocks and threads.
#include "tensor/parallel.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <latch>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "tensor/cpu_info.h"
#include "tensor/kernels/optimizer.h"
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

/// a * b as this thread's processor computes it now, not the compiler.
template <class T>
T product(T a, T b) {
  const volatile T factor = a, other = b;
  return factor * other;
}

template <class T>
constexpr T least = std::numeric_limits<T>::min();  // of the normal numbers

/// A subnormal result, and a normal one of a subnormal operand. To be compared outside of loops: a comparison
/// has operands, too.
template <class T>
std::pair<T, T> products_with_subnormals() {
  return {product(least<T>, T(0.5)), product(least<T> / 2, T(4))};
}

template <class T>
int64_t count_subnormal(const std::vector<T>& values) {
  return std::count_if(values.begin(), values.end(),
                       [](T value) { return std::fpclassify(value) == FP_SUBNORMAL; });
}

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

TEST_CASE_TEMPLATE("tensor/parallel: subnormal numbers are 0 on every thread of a loop and nowhere else", T,
                   float, double) {
  for (const int threads : {1, 2, 3, 7}) {
    CAPTURE(threads);
    const Threads scope(threads);
    std::latch all_here(threads);  // so that each thread takes one of the blocks
    std::vector<std::pair<T, T>> products(threads), after_inner_loop(threads);
    parallel_tasks(threads, [&](int64_t i) {
      all_here.arrive_and_wait();
      products[i] = products_with_subnormals<T>();
      parallel_tasks(2, [](int64_t) {});
      after_inner_loop[i] = products_with_subnormals<T>();
    });
    const std::vector<std::pair<T, T>> zeros(threads);
    CHECK((products == zeros));
    CHECK((after_inner_loop == zeros));
    CHECK((products_with_subnormals<T>() == std::pair{least<T> / 2, 2 * least<T>}));
  }
}

TEST_CASE("tensor/parallel: moments and weights that fade away are 0 after a step of AdamW") {
  // Each subnormal number takes a processor as long as a hundred others, and rounding to nearest keeps some
  // for ever: 0.99 x 50 units is 50 units.
  const AdamWStep step{.learning_rate = 1e-3,
                       .beta1 = 0.9,
                       .beta2 = 0.99,
                       .epsilon = 1e-8,
                       .weight_decay = 0.1,
                       .gradient_scale = 1,
                       .step = 1000};
  constexpr int64_t n = 100'000;
  const std::vector<float> g(n, 0.0f);
  for (const int threads : {1, 2, 3, 7}) {
    CAPTURE(threads);
    const Threads scope(threads);
    for (const float value : {1e-41f, least<float>, 1e-3f}) {
      CAPTURE(value);
      std::vector<float> p(n, value), m(n, value), v(n, value);
      adamw(Cpu{}, n, step, g.data(), p.data(), m.data(), v.data());
      const bool fades = value < 1e-3f;
      for (const std::vector<float>& values : {p, m, v}) {
        CHECK(count_subnormal(values) == 0);  // of m and v all, if they were kept
        CHECK(std::count(values.begin(), values.end(), 0.0f) == (fades ? n : 0));
      }
    }
  }
}

TEST_CASE("tensor/parallel: fewer than one thread is refused") {
  CHECK(error_of([] { set_thread_count(0); }) == "[threads] 0 threads; allowed: at least 1");
}

}  // namespace mixgrad
