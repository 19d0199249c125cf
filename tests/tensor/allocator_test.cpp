// The caching allocator: its counts, reuse, debug mode's fill and guards, and what it says when memory is
// short.
#include "tensor/allocator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tensor/tensor.h"
#include "tests/train/scratch_files.h"

namespace mixgrad {
namespace {

Allocator& allocator() { return Allocator::of({}); }

/// Debug mode on or off while it lives.
class DebugMode {
 public:
  explicit DebugMode(bool on) : before_(allocator().debug()) { allocator().set_debug(on); }
  ~DebugMode() { allocator().set_debug(before_); }
  DebugMode(const DebugMode&) = delete;
  DebugMode& operator=(const DebugMode&) = delete;

 private:
  bool before_;
};

TEST_CASE("tensor/allocator: live and peak bytes follow what is in use") {
  for (const bool debug : {false, true}) {
    CAPTURE(debug);
    const DebugMode mode(debug);
    allocator().reset_peak();
    const int64_t before = allocator().stats().live_bytes;
    const auto live = [&] { return allocator().stats().live_bytes - before; };
    const auto peak = [&] { return allocator().stats().peak_bytes - before; };
    {
      const Scratch<float> small(1);
      CHECK(live() == 64);
      {
        const Scratch<double> large(1000);
        CHECK(live() == 64 + 8192);  // 8000 rounded up to an eighth of 4096
        CHECK(peak() == 64 + 8192);
      }
      CHECK(live() == 64);
      const Scratch<float> later(1);
      CHECK(live() == 128);
      CHECK(peak() == 64 + 8192);
      allocator().reset_peak();
      CHECK(peak() == 128);
    }
    CHECK(live() == 0);
  }
}

TEST_CASE("tensor/allocator: blocks are aligned and waste at most an eighth") {
  const DebugMode mode(false);
  for (int64_t bytes = 1; bytes < 100'000; bytes += 1 + bytes / 3) {
    const int64_t before = allocator().stats().live_bytes;
    void* block = allocator().allocate(bytes);
    CHECK(reinterpret_cast<uintptr_t>(block) % 64 == 0);
    const int64_t size = allocator().stats().live_bytes - before;
    CHECK(size >= bytes);
    CHECK(size <= std::max(bytes + 63, bytes + bytes / 8));
    std::memset(block, 1, static_cast<size_t>(size));  // all of it can be written
    allocator().release(block, bytes);
  }
  CHECK(allocator().allocate(0) == nullptr);
}

TEST_CASE("tensor/allocator: a freed block serves the next request of its size") {
  const DebugMode mode(false);
  void* first = allocator().allocate(12'345);
  allocator().release(first, 12'345);
  const MemoryStats before = allocator().stats();
  CHECK(before.cached_bytes >= 12'345);
  for (int i = 0; i < 100; ++i) {
    void* again = allocator().allocate(12'346);  // rounds to the same size
    CHECK(again == first);
    allocator().release(again, 12'346);
  }
  CHECK(allocator().stats().system_allocations == before.system_allocations);
  allocator().trim();
  CHECK(allocator().stats().cached_bytes == 0);
  const Scratch<char> fresh(12'345);
  CHECK(allocator().stats().system_allocations == before.system_allocations + 1);
}

TEST_CASE("tensor/allocator: debug mode fills fresh memory with what shows") {
  const DebugMode mode(true);
  for (int round = 0; round < 2; ++round) {  // the second could get the first one's memory
    Tensor floats = Tensor::empty({5}, DType::float32), doubles = Tensor::empty({5}, DType::float64);
    const Tensor ints = Tensor::empty({5}, DType::int32), longs = Tensor::empty({5}, DType::int64);
    for (double value : floats.to_vector()) CHECK(std::isnan(value));
    for (double value : doubles.to_vector()) CHECK(std::isnan(value));
    for (double value : ints.to_vector()) CHECK(value == -1);
    for (double value : longs.to_vector()) CHECK(value == -1);
    floats.fill(0);
    doubles.fill(0);
  }
  CHECK(allocator().stats().cached_bytes == 0);
}

TEST_CASE("tensor/allocator: debug mode notices a write outside a block") {
  const DebugMode mode(true);
  Scratch<unsigned char> scratch(100);
  const Scratch<float> innocent(7);
  unsigned char* data = scratch.data();
  std::memset(data, 0, 100);  // writing the block itself is fine
  allocator().check_guards();
  for (const int at : {-64, -1, 100, 163}) {
    CAPTURE(at);
    const unsigned char before = data[at];
    data[at] = static_cast<unsigned char>(before ^ 1);
    CHECK(error_of([] { allocator().check_guards(); }) ==
          "[memory] a kernel wrote outside a block of 100 bytes");
    data[at] = before;
    allocator().check_guards();
  }
}

TEST_CASE("tensor/allocator: debug mode can not change under blocks in use") {
  const DebugMode mode(false);
  const Scratch<float> scratch(4);
  CHECK(contains(error_of([] { allocator().set_debug(true); }),
                 "debug mode can't change while 64 bytes are in use"));
  CHECK(!allocator().debug());
}

TEST_CASE("tensor/allocator: a request beyond the machine is refused with the numbers") {
  const MemoryStats before = allocator().stats();
  for (const int64_t bytes : {int64_t{1} << 50, int64_t{1} << 62, std::numeric_limits<int64_t>::max()}) {
    const std::string message = error_of([&] { allocator().allocate(bytes); });
    CHECK(contains(message, str("[memory] out of memory: ", bytes, " bytes needed, ")));
    CHECK(contains(message, " in use, the machine has "));
    CHECK(contains(message, " MiB; "));
    CHECK(contains(message, "reduce batch, context or width"));
  }
  CHECK(contains(error_of([] { allocator().allocate(-1); }), "a size of -1 bytes"));
  CHECK(contains(error_of([] { Tensor::empty({int64_t{1} << 48}, DType::float32); }),
                 "1125899906842624 bytes needed"));
  CHECK(allocator().stats().live_bytes == before.live_bytes);
  CHECK(allocator().stats().system_allocations == before.system_allocations);
}

TEST_CASE("tensor/allocator: threads share it") {
  const int64_t before = allocator().stats().live_bytes;
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread, &wrong] {
      for (int i = 0; i < 2000; ++i) {
        Scratch<int> scratch(1 + i % 50);
        std::fill_n(scratch.data(), 1 + i % 50, thread);
        for (int k = 0; k < 1 + i % 50; ++k) wrong += scratch.data()[k] != thread;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(allocator().stats().live_bytes == before);
}

}  // namespace
TEST_CASE("tensor/allocator: a large block starts where a huge page can") {
  if (Allocator::of(Device{}).debug()) return;  // a guard stands there
  Allocator::of(Device{}).trim();
  Scratch<char> large(5 << 20);
  CHECK(reinterpret_cast<uintptr_t>(large.data()) % (2 << 20) == 0);
}

}  // namespace mixgrad
