// What the host asks of the device: memory, copies, streams, and clear refusals.
#include "cuda/runtime.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tensor/error.h"

namespace mixgrad {
namespace {

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Whether there is a device to test with; says so when there is none.
bool has_device() {
  if (cuda::device_count() > 0) return true;
  CHECK(cuda::why_unavailable() != "");
  MESSAGE("not run: ", cuda::why_unavailable());
  return false;
}

}  // namespace

TEST_CASE("cuda/runtime: values come back as they were sent, copied and filled") {
  if (!has_device()) return;
  const Cuda device;
  const std::vector<int32_t> values = {1, -2, 3, 4, 5};
  const int64_t bytes = 20;
  void* first = cuda::allocate(device, bytes);
  void* second = cuda::allocate(device, bytes);
  cuda::copy_to_device(device, first, values.data(), bytes);
  cuda::fill(device, second, 0xFF, bytes);
  cuda::copy(device, second, first, 12);
  std::vector<int32_t> back(5);
  cuda::copy_to_host(device, back.data(), second, bytes);
  CHECK(back == std::vector<int32_t>{1, -2, 3, -1, -1});
  cuda::release(device, first);
  cuda::release(device, second);
  CHECK(cuda::allocate(device, 0) == nullptr);
}

TEST_CASE("cuda/runtime: a device that is not there is refused") {
  const std::string message = message_of([] { cuda::device_info(99); });
  CHECK(message.starts_with("[cuda] device 99 is not there"));
  if (!has_device()) return;
  const cuda::DeviceInfo info = cuda::device_info(0);
  CHECK(info.memory_bytes > 0);
  CHECK(info.free_bytes <= info.memory_bytes);
  CHECK(info.shared_bytes_per_block >= 96 * 1024);  // what the kernels count on
}

TEST_CASE("cuda/runtime: the allocator counts, and hands out freed blocks again") {
  if (!has_device()) return;
  const Cuda device;
  Allocator& allocator = cuda::allocator(device);
  const bool debug = allocator.debug();
  allocator.set_debug(false);
  const int64_t live_bytes = allocator.stats().live_bytes;
  const int64_t asked = allocator.stats().system_allocations;
  void* block = allocator.allocate(1024);
  CHECK(allocator.stats().live_bytes == live_bytes + 1024);
  cuda::fill(device, block, 1, 1024);
  allocator.release(block, 1024);
  CHECK(allocator.allocate(1024) == block);
  CHECK(allocator.stats().system_allocations == asked + 1);
  CHECK(allocator.stats().peak_bytes >= live_bytes + 1024);
  if (cuda::simulated()) {
    // What the last user left is not to be relied on.
    std::vector<char> host(1024);
    CHECK(message_of([&] { cuda::copy_to_host(device, host.data(), block, 1024); }) ==
          "[cuda] copy_to_host: of 1024 bytes, 1024 were never written");
  }
  allocator.release(block, 1024);
  allocator.set_debug(debug);
}

TEST_CASE("cuda/runtime: events tell the time between them") {
  if (!has_device()) return;
  const cuda::Stream stream;
  cuda::Event start;
  cuda::Event end;
  CHECK(message_of([&] { end.milliseconds_since(start); }) != "");
  start.record(stream.device());
  end.record(stream.device());
  cuda::synchronize(stream.device());
  CHECK(end.milliseconds_since(start) >= 0);
  CHECK(end.milliseconds_since(start) < 10000);
}

}  // namespace mixgrad
