// The host's side of the simulated device: memory, copies, streams, events.
#include "cuda/runtime.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cuda/simulator/accesses.h"
#include "cuda/simulator/stream.h"
#include "tensor/error.h"
#include "tensor/measure.h"

namespace mixgrad {

namespace simulator {

namespace {

using Queue = std::deque<std::function<void()>>;

Queue& queue_of(const Cuda& device) {
  static Queue* const default_stream = new Queue;
  return device.stream == nullptr ? *default_stream : *static_cast<Queue*>(device.stream);
}

void run_all(Queue& queue) {
  while (!queue.empty()) {
    const std::function<void()> work = std::move(queue.front());
    queue.pop_front();
    try {
      work();
    } catch (...) {
      queue.clear();  // what follows a failure never runs, as on a device
      throw;
    }
  }
}

bool synchronises_always() {
  static const char* const setting = std::getenv("MIXGRAD_CUDA_SYNC");
  return setting != nullptr && std::strcmp(setting, "0") != 0;
}

}  // namespace

void enqueue(const Cuda& device, std::function<void()> work) {
  queue_of(device).push_back(std::move(work));
  if (synchronises_always()) run_all(queue_of(device));
}

}  // namespace simulator

namespace cuda {

using simulator::enqueue;
using simulator::OpenMemory;

int device_count() { return 1; }
std::string why_unavailable() { return ""; }

DeviceInfo device_info(int index) {
  check_usage(index == 0, "[cuda] device ", index, " is not there; allowed: 0, the simulated device");
  const int64_t memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  return {.name = "simulated device",
          .major = 9,
          .minor = 0,
          .multiprocessors = 1,
          .memory_bytes = memory_bytes,
          .free_bytes = int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGE_SIZE),
          .shared_bytes_per_block = simulator::max_shared_bytes};
}

void* allocate(const Cuda&, int64_t bytes) { return simulator::allocate_memory(bytes); }

void release(const Cuda& device, void* block) noexcept {
  try {
    synchronize(device);
  } catch (const Error&) {
    // As on a device, where the memory of a kernel that failed can still be given back.
  }
  simulator::release_memory(block);
}

void discard(const Cuda& device, void* block) {
  enqueue(device, [block] { simulator::mark_unwritten(block); });
}

bool simulated() { return true; }

void copy_to_device(const Cuda& device, void* to, const void* from, int64_t bytes) {
  if (measuring()) return;
  synchronize(device);
  simulator::check_range("copy_to_device", to, bytes);
  const OpenMemory open;
  if (bytes > 0) std::memcpy(to, from, bytes);
  simulator::mark_written(to, bytes);
}

void copy_to_host(const Cuda& device, void* to, const void* from, int64_t bytes) {
  if (measuring()) {
    std::memset(to, 0, bytes);
    return;
  }
  copy_to_host_later(device, to, from, bytes);
  synchronize(device);
}

void copy_to_host_later(const Cuda& device, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  std::memset(to, 0xFF, bytes);  // NaN, for who reads too early
  enqueue(device, [=] {
    simulator::check_written("copy_to_host", from, bytes);
    const OpenMemory open;
    std::memcpy(to, from, bytes);
  });
}

void copy(const Cuda& device, void* to, const void* from, int64_t bytes) {
  if (bytes == 0 || measuring()) return;
  enqueue(device, [=] {
    simulator::check_range("copy", to, bytes);
    simulator::check_written("copy", from, bytes);
    const OpenMemory open;
    std::memmove(to, from, bytes);
    simulator::mark_written(to, bytes);
  });
}

void fill(const Cuda& device, void* to, unsigned char value, int64_t bytes) {
  if (bytes == 0 || measuring()) return;
  enqueue(device, [=] {
    simulator::check_range("fill", to, bytes);
    const OpenMemory open;
    if (value == 0)
      simulator::clear_memory(to, bytes);
    else
      std::memset(to, value, bytes);
    simulator::mark_written(to, bytes);
  });
}

void synchronize(const Cuda& device) { simulator::run_all(simulator::queue_of(device)); }

Stream::Stream(int device_index) : device_{device_index, new simulator::Queue} {
  check_usage(device_index == 0, "[cuda] device ", device_index, " is not there; allowed: 0");
}
Stream::~Stream() {
  try {
    synchronize(device_);
  } catch (const Error&) {
    // Nobody asked for these results.
  }
  delete static_cast<simulator::Queue*>(device_.stream);
}

namespace {

struct Recording {
  Cuda device;
  bool happened = false;
  std::chrono::steady_clock::time_point time;
};

/// An event's last recording, which work in a queue may share.
std::shared_ptr<Recording>& last_recording(void* event) {
  return *static_cast<std::shared_ptr<Recording>*>(event);
}

}  // namespace

Event::Event() : event_(new std::shared_ptr<Recording>) {}
Event::~Event() { delete &last_recording(event_); }

void Event::record(const Cuda& device) {
  const auto recording = std::make_shared<Recording>(Recording{.device = device, .time = {}});
  last_recording(event_) = recording;
  enqueue(device, [recording] {
    recording->happened = true;
    recording->time = std::chrono::steady_clock::now();
  });
}

void Event::wait_on(const Cuda& device) const {
  enqueue(device, [recording = last_recording(event_)] {
    if (recording != nullptr && !recording->happened) synchronize(recording->device);
  });
}

double Event::milliseconds_since(const Event& start) const {
  const auto& from = last_recording(start.event_);
  const auto& to = last_recording(event_);
  check(from != nullptr && from->happened && to != nullptr && to->happened,
        "[cuda] milliseconds_since: both events must be recorded, and their streams synchronised");
  return std::chrono::duration<double, std::milli>(to->time - from->time).count();
}

}  // namespace cuda

}  // namespace mixgrad
