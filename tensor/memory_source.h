// Where an allocator's memory comes from: the operating system, or a device.
#pragma once

#include <cstdint>
#include <functional>

namespace mixgrad {

struct MemorySource {
  /// A block aligned to 64 bytes; null when there is too little memory.
  std::function<void*(int64_t bytes)> allocate;
  /// Gives it back.
  std::function<void(void* block)> release;
  /// How much memory there is in all.
  std::function<int64_t()> total_bytes;
  /// Told of a block that was used before and is handed out again; may be empty.
  std::function<void(void* block, int64_t bytes)> reuse;
  /// Whether the host's code can read and write it.
  bool host = true;
};

/// The machine's own memory.
MemorySource host_memory();

/// Addresses without memory behind them, as many as a process can have. A block reads as 0 each time that it
/// is handed out, and takes up memory only where it is written.
MemorySource addresses_only();

}  // namespace mixgrad
