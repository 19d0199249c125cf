#include "train/bench/peaks.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>

#include "tensor/parallel.h"

namespace mixgrad {

namespace {

using Clock = std::chrono::steady_clock;

/// A value that the compiler takes for unknown, and for used.
template <class T>
void hide(T& value) {
  asm volatile("" : "+m"(value));
}

// Twelve sums, none of which waits for another, cover the latency of a multiply-add, and fit with two factors
// into the 16 registers of AVX2. The loop stands in each function because a function that is compiled for
// other instructions can't be inlined.
constexpr int sums = 12;
constexpr int64_t rounds = 1 << 16;  // of a timed call: well below a millisecond

#if defined(__x86_64__)
using Vector512 = float __attribute__((vector_size(64)));
using Vector256 = float __attribute__((vector_size(32)));

__attribute__((target("avx512f"))) double multiply_add_512() {
  Vector512 sum[sums] = {}, factor = {}, addend = {};
  hide(factor);
  hide(addend);
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < sums; ++i) sum[i] = sum[i] * factor + addend;
  }
  hide(sum);
  return 2.0 * sums * rounds * 16;
}

__attribute__((target("avx2,fma"))) double multiply_add_256() {
  Vector256 sum[sums] = {}, factor = {}, addend = {};
  hide(factor);
  hide(addend);
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < sums; ++i) sum[i] = sum[i] * factor + addend;
  }
  hide(sum);
  return 2.0 * sums * rounds * 8;
}
#endif

double multiply_add_128() {
  using Vector128 = float __attribute__((vector_size(16)));
  Vector128 sum[sums] = {}, factor = {}, addend = {};
  hide(factor);
  hide(addend);
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < sums; ++i) sum[i] = sum[i] * factor + addend;
  }
  hide(sum);
  return 2.0 * sums * rounds * 4;
}

/// Returns the FLOPs that it did.
using MultiplyAdd = double (*)();

MultiplyAdd widest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return multiply_add_512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_add_256;
#endif
  return multiply_add_128;
}

/// The best rate, in units a second, of calls that do so many units each.
double best_rate(double seconds, double units, const std::function<void()>& call) {
  double best = 0;
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  do {
    const Clock::time_point start = Clock::now();
    call();
    best = std::max(best, units / std::chrono::duration<double>(Clock::now() - start).count());
  } while (Clock::now() < end);
  return best;
}

double measure_flops(int threads, double seconds) {
  constexpr int64_t repeats = 8;  // 2 ms: long beside waking a thread, short beside the turns of a scheduler
  const MultiplyAdd call = widest();
  return best_rate(seconds, call() * repeats * threads, [&] {
    parallel_tasks(threads, [&](int64_t) {
      for (int64_t i = 0; i < repeats; ++i) call();
    });
  });
}

uint64_t sum_of(const uint64_t* values, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

MemoryLevel measure_level(std::string name, int64_t array_bytes, int threads, double seconds) {
  constexpr int64_t least_bytes = 16 << 20;  // moved in a timed call, for the reason above
  const int64_t count = array_bytes / static_cast<int64_t>(sizeof(uint64_t));  // of one thread
  const int64_t repeats = std::max<int64_t>(1, least_bytes / array_bytes);
  // Untouched until the thread that will work on them writes them.
  const auto make = [&] { return std::make_unique_for_overwrite<uint64_t[]>(count * threads); };
  const auto source = make(), target = make();
  parallel_tasks(threads, [&](int64_t task) {
    std::fill_n(source.get() + task * count, count, 1);
    std::fill_n(target.get() + task * count, count, 2);
  });
  const double bytes = static_cast<double>(repeats * threads * count) * sizeof(uint64_t);
  const double read = best_rate(seconds, bytes, [&] {
    parallel_tasks(threads, [&](int64_t task) {
      for (int64_t i = 0; i < repeats; ++i) {
        uint64_t sum = sum_of(source.get() + task * count, count);
        hide(sum);
      }
    });
  });
  const double copied = best_rate(seconds, 2 * bytes, [&] {
    parallel_tasks(threads, [&](int64_t task) {
      for (int64_t i = 0; i < repeats; ++i) {
        uint64_t* to = target.get() + task * count;
        std::memcpy(to, source.get() + task * count, count * sizeof(uint64_t));
        hide(*to);
      }
    });
  });
  return {std::move(name), 2 * array_bytes * threads, read, copied};
}

/// The size of a cache as the system knows it; often it doesn't.
int64_t cache_bytes(int name, int64_t otherwise) {
  const long bytes = ::sysconf(name);
  return bytes > 0 ? bytes : otherwise;
}

}  // namespace

const MemoryLevel& Peaks::level_of(double bytes) const {
  for (const MemoryLevel& level : levels) {
    if (bytes <= 2 * static_cast<double>(level.bytes)) return level;
  }
  return levels.back();
}

Peaks measure_peaks(int threads, double seconds) {
  constexpr int64_t mib = 1 << 20;
  const int64_t l2 = cache_bytes(_SC_LEVEL2_CACHE_SIZE, mib);                         // of each core
  const int64_t l3 = std::max(4 * l2, cache_bytes(_SC_LEVEL3_CACHE_SIZE, 16 * mib));  // of all
  const int64_t memory = std::clamp(4 * l3, 64 * mib, 512 * mib);
  return {
      threads,
      measure_flops(threads, seconds),
      {measure_level("L2", l2 / 4, threads, seconds), measure_level("L3", l3 / 4 / threads, threads, seconds),
       measure_level("memory", memory / threads, threads, seconds)}};
}

}  // namespace mixgrad
