#include "tensor/allocator.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tensor/cpu_info.h"
#include "tensor/error.h"

namespace mixgrad {

namespace {

constexpr int64_t alignment = 64;
constexpr int64_t guard_bytes = 64;
constexpr unsigned char guard_pattern = 0xA5;

/// Rounds up to an eighth of the leading power of two: few distinct sizes, at most 12.5 % waste.
int64_t block_size(int64_t bytes) {
  const int64_t step =
      std::max<int64_t>(alignment, static_cast<int64_t>(std::bit_floor(uint64_t(bytes))) / 8);
  return (bytes + step - 1) / step * step;
}

bool guards_intact(const void* block, int64_t bytes) {
  const auto* start = static_cast<const unsigned char*>(block);
  const auto intact = [](unsigned char byte) { return byte == guard_pattern; };
  return std::all_of(start - guard_bytes, start, intact) &&
         std::all_of(start + bytes, start + bytes + guard_bytes, intact);
}

}  // namespace

Allocator::Allocator(MemorySource source) : source_(std::move(source)) {
  const char* setting = std::getenv("MIXGRAD_DEBUG_MEMORY");
  debug_ = setting != nullptr && std::strcmp(setting, "0") != 0;
}

void Allocator::fail(int64_t bytes) const {
  const int64_t total = source_.total_bytes(), limit = address_limit_bytes();
  throw Error(str("[memory] out of memory: ", bytes, " bytes needed, ", stats_.live_bytes, " in use, ",
                  limit < total ? "this process may have " : "the machine has ", std::min(limit, total) >> 20,
                  " MiB; reduce batch, context or width"));
}

void* Allocator::system_allocate(int64_t bytes) {
  if (stats_.live_bytes + stats_.cached_bytes + bytes > source_.total_bytes()) free_cached();
  void* block = source_.allocate(bytes);
  if (block == nullptr) fail(bytes);
  ++stats_.system_allocations;
  return block;
}

void* Allocator::allocate(int64_t bytes) {
  check(bytes >= 0, "[memory] a size of ", bytes, " bytes was asked for");
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  // The kernel promises more than it has and kills later; so refuse here what can't be there.
  if (bytes > source_.total_bytes() - stats_.live_bytes) fail(bytes);
  const int64_t size = block_size(bytes);
  void* block = nullptr;
  if (debug_ && source_.host) {
    auto* start = static_cast<unsigned char*>(system_allocate(block_size(bytes + 2 * guard_bytes)));
    std::memset(start, guard_pattern, guard_bytes);
    std::memset(start + guard_bytes, 0xFF, bytes);
    std::memset(start + guard_bytes + bytes, guard_pattern, guard_bytes);
    block = start + guard_bytes;
    live_blocks_[block] = bytes;
  } else if (auto& cached = free_blocks_[size]; !cached.empty()) {
    block = cached.back();
    cached.pop_back();
    stats_.cached_bytes -= size;
    if (source_.reuse) source_.reuse(block, size);
  } else {
    block = system_allocate(debug_ ? bytes : size);  // to the byte, where the device checks accesses
  }
  stats_.live_bytes += size;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
  return block;
}

void Allocator::release(void* block, int64_t bytes) noexcept {
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  const int64_t size = block_size(bytes);
  stats_.live_bytes -= size;
  if (debug_ && !source_.host) {
    source_.release(block);
  } else if (debug_) {
    if (!guards_intact(block, bytes)) {
      std::fprintf(stderr, "[memory] a kernel wrote outside a block of %lld bytes\n",
                   static_cast<long long>(bytes));
      std::abort();
    }
    live_blocks_.erase(block);
    source_.release(static_cast<unsigned char*>(block) - guard_bytes);
  } else {
    free_blocks_[size].push_back(block);
    stats_.cached_bytes += size;
  }
}

MemoryStats Allocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Allocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak_bytes = stats_.live_bytes;
}

void Allocator::trim() {
  const std::lock_guard lock(mutex_);
  free_cached();
}

void Allocator::free_cached() {
  for (auto& [size, blocks] : free_blocks_) {
    for (void* block : blocks) source_.release(block);
  }
  free_blocks_.clear();
  stats_.cached_bytes = 0;
}

void Allocator::set_debug(bool on) {
  trim();
  const std::lock_guard lock(mutex_);
  check(on == debug_ || stats_.live_bytes == 0, "[memory] debug mode can't change while ", stats_.live_bytes,
        " bytes are in use");
  debug_ = on;
}

void Allocator::check_guards() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [block, bytes] : live_blocks_) {
    check(guards_intact(block, bytes), "[memory] a kernel wrote outside a block of ", bytes, " bytes");
  }
}

}  // namespace mixgrad
