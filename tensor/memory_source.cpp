#include "tensor/memory_source.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <map>
#include <memory>

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

MemorySource addresses_only() {
  const auto sizes = std::make_shared<std::map<void*, int64_t>>();
  return {.allocate = [sizes](int64_t bytes) -> void* {
            void* const block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (block == MAP_FAILED) return nullptr;
            (*sizes)[block] = bytes;
            return block;
          },
          .release =
              [sizes](void* block) {
                const auto found = sizes->find(block);
                munmap(block, found->second);
                sizes->erase(found);
              },
          .total_bytes = [] { return std::numeric_limits<int64_t>::max(); },
          .reuse = [](void* block, int64_t bytes) { madvise(block, bytes, MADV_DONTNEED); },
          .host = false};
}

}  // namespace mixgrad
