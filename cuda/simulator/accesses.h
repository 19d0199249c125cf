// The simulated device's memory, and the check of each load and store of a kernel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/simulator/fiber.h"

namespace mixgrad::simulator {

/// Device memory of its own pages, uninitialised; null for 0 bytes. Throws Error when the machine has no room
/// for the addresses.
void* allocate_memory(int64_t bytes);
/// Gives it back; its addresses are never used again. Throws Error when `block` isn't what allocate_memory
/// returned.
void release_memory(void* block);

/// While one lives, the host's own code can reach device memory. At all other times a host access ends the
/// program with a message, as it would without unified memory.
class OpenMemory {
 public:
  OpenMemory();
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;
};

/// Installs the signal handler that gives this message. The first allocation does it; needed again only where
/// other code has installed its own since.
void explain_host_accesses();

/// Throws Error unless the bytes lie within one allocation; `what` names who wants them.
void check_range(const char* what, const void* address, int64_t bytes);
/// Throws Error when a byte was never written.
void check_written(const char* what, const void* address, int64_t bytes);
/// Notes that the host wrote the bytes.
void mark_written(const void* address, int64_t bytes);
/// Notes that the allocation is as good as new: nobody wrote anything.
void mark_unwritten(const void* block);
/// Makes all bytes zero without touching those that never were anything else: sparse memory stays sparse.
void clear_memory(void* address, int64_t bytes);

/// Who makes the accesses that are noted now.
struct Accessor {
  bool active = false;       // a simulated thread runs
  uint32_t launch = 0;       // number of the first block of this launch; blocks are counted over all launches
  uint32_t block = 0;        // number of the block
  uint16_t thread = 0;       // in the block
  uint16_t block_epoch = 0;  // how many barriers the block has passed
  uint16_t warp_epoch = 0;   // how many barriers of its warp the thread has passed
  const Fiber* fiber = nullptr;
  int64_t bytes_read = 0;  // of global memory, in this launch
  int64_t bytes_written = 0;
  int64_t shared_bytes_read = 0;
};
extern constinit thread_local Accessor accessor;

/// Where in the kernels' code a store is: distance from the program's start, behind the instruction.
using StoreSite = uint32_t;
/// The stores to global and shared memory that were reached since this was last asked, in ascending order.
std::vector<StoreSite> take_stores();
/// Each site as "softmax.cu:34", where binutils and debug information tell.
std::vector<std::string> source_lines(const std::vector<StoreSite>& sites);
/// A store that is dropped is made all the same, by the compiler's code, and undone by the next call of this:
/// before anything else is read, written or waited for.
void undo_dropped_store();

/// A piece of the block's shared memory, uninitialised. The first call takes `place`, null before; later
/// calls for other blocks get the same one.
void* take_shared(void* place, int64_t bytes);

}  // namespace mixgrad::simulator
