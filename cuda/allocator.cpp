// The caching allocators of the devices.
#include "tensor/allocator.h"

#include <map>
#include <memory>
#include <mutex>

#include "cuda/runtime.h"

namespace mixgrad::cuda {

namespace {

MemorySource memory_of(int index) {
  const Cuda device{index};
  return {.allocate = [device](int64_t bytes) { return allocate(device, bytes); },
          .release = [device](void* block) { release(device, block); },
          .total_bytes = [bytes = device_info(index).memory_bytes] { return bytes; },
          .reuse = [device](void* block, int64_t) { discard(device, block); },
          .host = false};
}

}  // namespace

Allocator& allocator(const Cuda& device) {
  static std::mutex mutex;
  // Never destroyed: tensors in static storage may outlive every other static object.
  static auto* const allocators = new std::map<int, std::unique_ptr<Allocator>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Allocator>& found = (*allocators)[device.index];
  if (found == nullptr) {
    found = std::make_unique<Allocator>(memory_of(device.index));
    if (simulated()) found->set_debug(true);
  }
  return *found;
}

}  // namespace mixgrad::cuda
