#include "tensor/memory_source.h"

#include <unistd.h>

#include <cstdlib>

namespace mixgrad {

MemorySource host_memory() {
  constexpr int64_t alignment = 64;
  return {.allocate = [](int64_t bytes) { return std::aligned_alloc(alignment, bytes); },
          .release = [](void* block) { std::free(block); },
          .total_bytes =
              [] {
                static const int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
                return bytes;
              },
          .reuse = nullptr};
}

}  // namespace mixgrad
