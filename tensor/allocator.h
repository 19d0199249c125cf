// The caching allocator: every tensor's and every kernel's memory comes from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "tensor/device.h"
#include "tensor/memory_source.h"

namespace mixgrad {

/// What an allocator has given out. Sizes are those of the blocks, after rounding.
struct MemoryStats {
  int64_t live_bytes = 0;          // in use now
  int64_t peak_bytes = 0;          // most ever in use since the last reset_peak()
  int64_t cached_bytes = 0;        // freed by their users, kept for the next request of their size
  int64_t system_allocations = 0;  // how often the operating system had to be asked
};

/// Keeps freed blocks by size, so that a training loop asks the operating system for memory in its first step
/// only. Blocks are aligned to 64 bytes, those of 4 MiB and more to huge pages. Thread-safe.
///
/// In debug mode (environment variable MIXGRAD_DEBUG_MEMORY=1, or set_debug) nothing is cached, fresh memory
/// is filled with 0xFF bytes (NaN in every floating type, -1 in every integer) so that a value that no kernel
/// wrote shows, and each block stands between guards that reveal a write outside it; memory that the host
/// can't reach is neither filled nor guarded.
class Allocator {
 public:
  /// The allocator of a device; in a measurement (tensor/measure.h), one that only counts.
  static Allocator& of(Device device);
  explicit Allocator(MemorySource source);

  /// A block of at least so many bytes; null for 0. Throws Error when the machine has too little memory.
  void* allocate(int64_t bytes);
  /// Gives back what allocate(bytes) returned. In debug mode ends the program when a guard was overwritten.
  void release(void* block, int64_t bytes) noexcept;

  MemoryStats stats() const;
  /// Lets peak_bytes start again from live_bytes.
  void reset_peak();
  /// Returns all cached blocks to the operating system.
  void trim();

  /// Turns debug mode on or off; only while no block is in use.
  void set_debug(bool on);
  bool debug() const { return debug_; }
  /// In debug mode: throws Error when any live block's guards were overwritten.
  void check_guards() const;

 private:
  // These are called with the mutex held.
  void* system_allocate(int64_t bytes);
  void free_cached();
  [[noreturn]] void fail(int64_t bytes) const;

  MemorySource source_;
  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> free_blocks_;  // by block size
  std::map<void*, int64_t> live_blocks_;               // debug mode only: block -> bytes asked for
  MemoryStats stats_;
  bool debug_ = false;
};

/// Memory of one kernel call: count elements, uninitialised, given back at the end of the scope.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count, Device device = {})
      : allocator_(Allocator::of(device)),
        bytes_(count * static_cast<int64_t>(sizeof(T))),
        data_(static_cast<T*>(allocator_.allocate(bytes_))) {}
  ~Scratch() { allocator_.release(data_, bytes_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T* data() { return data_; }

 private:
  Allocator& allocator_;
  int64_t bytes_;
  T* data_;
};

}  // namespace mixgrad
