// The thread pool behind the parallel loops.
//
// One loop runs at a time. Its blocks are handed out one by one from a counter, to the calling thread and to
// whichever workers come: so a thread that another program has pushed aside holds up no more than the block
// that it is at, and one that wakes too late finds nothing left and harms nobody.
//
// Workers are not pinned to cores. That gained nothing on an idle machine (steps of 34 ms either way) nor
// beside a busy program (60 ms), and two runs at once, whose workers then share a core while another is free,
// took 15 % longer. Pinned workers were faster on a crowded machine only: 123 to 167 ms instead of 166 to 220
// at a load of 8 to 10 on 2 cores.
#include "tensor/parallel.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tensor/cpu_info.h"
#include "tensor/error.h"
#include "tensor/measure.h"

namespace mixgrad {

namespace {

using Clock = std::chrono::steady_clock;

struct Loop {
  BlockFunction call;
  const void* body;
  int64_t count;
  int64_t block;
  int64_t blocks;

  void run_block(int64_t index) const { call(body, index * block, std::min(count, (index + 1) * block)); }
};

thread_local int own_index = 0;
thread_local bool in_loop = false;

/// While it lives, the calling thread takes subnormal operands for 0 and makes 0 of subnormal results.
class SubnormalsAreZero {
 public:
  SubnormalsAreZero() : before_(control()) { set_control(before_ | flush); }
  ~SubnormalsAreZero() { set_control(before_); }
  SubnormalsAreZero(const SubnormalsAreZero&) = delete;
  SubnormalsAreZero& operator=(const SubnormalsAreZero&) = delete;

 private:
  // The thread's control register for floating point, and its bits for this.
#if defined(__x86_64__)
  using Control = uint32_t;
  static constexpr Control flush = 1u << 15 | 1u << 6;  // results (FTZ), operands (DAZ)
  static Control control() { return __builtin_ia32_stmxcsr(); }
  static void set_control(Control value) { __builtin_ia32_ldmxcsr(value); }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static constexpr Control flush = 1u << 24;  // both (FZ)
  static Control control() {
    Control value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(Control value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  using Control = int;
  static constexpr Control flush = 0;
  static Control control() { return 0; }
  static void set_control(Control) {}
#endif

  Control before_;
};

/// Tells the processor that this is a loop that waits.
void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  /// Runs a loop together with the workers; one caller at a time.
  void run(const Loop& loop);

 private:
  void work(int index);
  void take_blocks();
  void wait_for_change(const std::atomic<int>& counter, int seen) const;

  const std::chrono::microseconds spin_time_;
  Loop loop_{};  // read only by who has taken one of its blocks and not yet counted it as done

  // In cache lines of their own: each is written by other threads at other times.
  alignas(64) std::atomic<int64_t> left_{0};     // blocks that nobody has taken
  alignas(64) std::atomic<int64_t> pending_{0};  // blocks that are not done
  alignas(64) std::atomic<int> started_{0};      // loops so far, modulo 2^32: what workers wait for
  alignas(64) std::atomic<int> finished_{0};     // the same of their ends: what the caller waits for
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

/// Loops follow each other within microseconds while a model trains, and to wake a thread takes some tens. So
/// a thread without work looks out for some for that long before it sleeps: less is slow, and more takes time
/// from other programs. With more threads than cores it would take it from our own.
std::chrono::microseconds spin_time(int threads) {
  return std::chrono::microseconds(threads <= usable_cores() ? 50 : 0);
}

Pool::Pool(int threads) : spin_time_(spin_time(threads)) {
  for (int index = 1; index < threads; ++index) workers_.emplace_back([this, index] { work(index); });
}

Pool::~Pool() {
  stopping_ = true;
  ++started_;
  started_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run(const Loop& loop) {
  const int finished_before = finished_.load(std::memory_order_relaxed);
  loop_ = loop;
  pending_.store(loop.blocks, std::memory_order_relaxed);
  left_.store(loop.blocks, std::memory_order_release);
  started_.fetch_add(1, std::memory_order_release);
  if (loop.blocks > static_cast<int64_t>(workers_.size())) {
    started_.notify_all();
  } else {
    for (int64_t other = 1; other < loop.blocks; ++other) started_.notify_one();
  }
  take_blocks();
  wait_for_change(finished_, finished_before);
}

void Pool::work(int index) {
  const SubnormalsAreZero mode;
  own_index = index;
  in_loop = true;
  for (int seen = 0; !stopping_; seen = started_.load(std::memory_order_acquire)) {
    take_blocks();
    wait_for_change(started_, seen);
  }
}

void Pool::take_blocks() {
  int64_t done = 0;
  for (int64_t left = left_.load(std::memory_order_relaxed); left > 0;) {
    if (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acquire, std::memory_order_relaxed))
      continue;
    loop_.run_block(loop_.blocks - left);
    ++done;
    left = left_.load(std::memory_order_relaxed);
  }
  if (done > 0 && pending_.fetch_sub(done, std::memory_order_acq_rel) == done) {
    finished_.fetch_add(1, std::memory_order_release);
    finished_.notify_one();
  }
}

void Pool::wait_for_change(const std::atomic<int>& counter, int seen) const {
  constexpr int looks = 32;  // between two looks at the clock
  const Clock::time_point end = Clock::now() + spin_time_;
  do {
    for (int look = 0; look < looks; ++look) {
      if (counter.load(std::memory_order_acquire) != seen) return;
      relax();
    }
  } while (Clock::now() < end);
  counter.wait(seen, std::memory_order_acquire);
}

std::mutex pool_mutex;               // held by the thread whose loop the pool runs
std::unique_ptr<Pool> pool;          // guarded by the mutex; started by the first loop that needs it
std::atomic<int> wanted_threads{0};  // 0: as many as there are cores

void run_alone(const Loop& loop) {
  for (int64_t index = 0; index < loop.blocks; ++index) loop.run_block(index);
}

}  // namespace

int thread_count() {
  const int wanted = wanted_threads.load(std::memory_order_relaxed);
  return wanted > 0 ? wanted : usable_cores();
}

void set_thread_count(int threads) {
  check(threads >= 1, "[threads] ", threads, " threads; allowed: at least 1");
  const std::lock_guard lock(pool_mutex);
  wanted_threads = threads;
  if (pool != nullptr && pool->threads() != threads) pool.reset();
}

int thread_index() { return own_index; }

void run_blocks(int64_t count, int64_t block, BlockFunction call, const void* body) noexcept {
  if (measuring()) return;
  const SubnormalsAreZero mode;
  const Loop loop{call, body, count, block, (count + block - 1) / block};
  if (loop.blocks <= 1 || in_loop || thread_count() == 1) return run_alone(loop);
  const std::unique_lock lock(pool_mutex, std::try_to_lock);
  if (!lock) return run_alone(loop);
  if (pool == nullptr) pool = std::make_unique<Pool>(thread_count());
  in_loop = true;
  pool->run(loop);
  in_loop = false;
}

}  // namespace mixgrad
