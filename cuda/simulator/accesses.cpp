// The simulated device's memory, and the check of each load and store of a kernel.
//
// Every allocation has its own pages in one large range of addresses; beside it lies a table with a cell for
// each 4 bytes, which the operating system fills with zeros as it is touched. A cell knows which of its bytes
// were written at all, and who read and wrote them last. Two accesses by different threads, of which one is a
// write, are a race unless a barrier lies between, whatever order the simulator happened to choose.
#include "cuda/simulator/accesses.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <unordered_set>

#include "cuda/simulator/device_code.h"
#include "cuda/simulator/scheduler.h"
#include "tensor/error.h"

namespace mixgrad::simulator {

constinit thread_local Accessor accessor;

namespace {

constexpr uintptr_t page_bytes = 4096;
constexpr uintptr_t range_bytes = uintptr_t{1} << 40;
constexpr uintptr_t granule = 4;

/// A thread number of an access stands for one thread, or, of reads only, for several.
constexpr uint16_t several_of_a_warp = 0x4000;  // plus the warp's number
constexpr uint16_t several = 0x8000;

struct Access {
  uint32_t block;  // 0: none
  uint32_t code;   // the instruction, from the program's start
  uint16_t thread;
  uint16_t block_epoch;
  uint16_t warp_epoch;
  uint8_t bytes;  // which of the granule's, a bit each
  bool atomic;
};

struct Cell {
  Access write;
  Access read;
  bool several_blocks_read;
  uint8_t written;  // which bytes ever were, a bit each
};

struct Allocation {
  uintptr_t begin;
  int64_t bytes;
  bool shared;
  bool written;  // all of it, by the host
};

uintptr_t round_up(uintptr_t bytes, uintptr_t unit) { return (bytes + unit - 1) / unit * unit; }

uintptr_t reserve(uintptr_t bytes, int protection) {
  void* start = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  check(start != MAP_FAILED, "[simulator] can't reserve ", bytes >> 40,
        " TiB of addresses; is there a limit on virtual memory (ulimit -v, vm.overcommit_memory=2)?");
  return reinterpret_cast<uintptr_t>(start);
}

class Memory {
 public:
  Memory()
      : start_(reserve(range_bytes, PROT_NONE)),
        cells_(
            reinterpret_cast<Cell*>(reserve(range_bytes / granule * sizeof(Cell), PROT_READ | PROT_WRITE))),
        next_(start_ + page_bytes) {}

  bool contains(uintptr_t address) const { return address - start_ < range_bytes; }

  Allocation& allocate(int64_t bytes, bool shared) {
    const uintptr_t begin = next_;
    const uintptr_t pages = round_up(bytes, page_bytes) + page_bytes;  // one stays empty
    check(pages < start_ + range_bytes - begin, "[simulator] no addresses left for ", bytes, " bytes");
    next_ += pages;
    if (open_ > 0) protect(PROT_READ | PROT_WRITE);
    return allocations_[begin] = {begin, bytes, shared, false};
  }

  void release(uintptr_t begin) {
    const auto found = allocations_.find(begin);
    check(found != allocations_.end(), "[simulator] release of what was not allocated, or twice");
    const Allocation& allocation = found->second;
    drop_pages(allocation.begin, allocation.bytes);
    drop_cells(allocation.begin, allocation.bytes);
    allocations_.erase(found);
    recent_.fill(nullptr);
  }

  /// The allocation that an address lies in or closely behind; null when there is none.
  Allocation* find(uintptr_t address) {
    Allocation*& recent = recent_[address / page_bytes % recent_.size()];
    if (recent != nullptr && address - recent->begin < static_cast<uintptr_t>(recent->bytes)) return recent;
    auto next = allocations_.upper_bound(address);
    if (next == allocations_.begin()) return nullptr;
    return recent = &std::prev(next)->second;
  }

  Cell& cell(uintptr_t address) { return cells_[(address - start_) / granule]; }

  /// Back to zeros that take no room.
  void drop_pages(uintptr_t begin, int64_t bytes) {
    madvise(reinterpret_cast<void*>(begin), round_up(bytes, page_bytes), MADV_DONTNEED);
  }
  void drop_cells(uintptr_t begin, int64_t bytes) {
    auto* first = reinterpret_cast<unsigned char*>(&cell(begin));
    auto* last = reinterpret_cast<unsigned char*>(&cell(begin + round_up(bytes, granule)));
    auto* first_page =
        reinterpret_cast<unsigned char*>(round_up(reinterpret_cast<uintptr_t>(first), page_bytes));
    auto* last_page = last - reinterpret_cast<uintptr_t>(last) % page_bytes;
    if (last_page <= first_page) {
      std::memset(first, 0, last - first);
      return;
    }
    std::memset(first, 0, first_page - first);
    madvise(first_page, last_page - first_page, MADV_DONTNEED);
    std::memset(last_page, 0, last - last_page);
  }

  void open() {
    if (open_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    if (--open_ == 0) protect(PROT_NONE);
  }

 private:
  void protect(int protection) {
    if (next_ > start_) mprotect(reinterpret_cast<void*>(start_), next_ - start_, protection);
  }

  uintptr_t start_;
  Cell* cells_;
  uintptr_t next_;
  int open_ = 0;
  std::map<uintptr_t, Allocation> allocations_;
  std::array<Allocation*, 256> recent_{};
};

Memory& memory() {
  static Memory* const instance = [] {
    explain_host_accesses();
    return new Memory;
  }();
  return *instance;
}

struct sigaction previous_handler;

/// A kernel's accesses are checked before they are made, so this was the host's own code.
void on_segmentation_fault(int, siginfo_t* info, void*) {
  if (memory().contains(reinterpret_cast<uintptr_t>(info->si_addr))) {
    constexpr char message[] =
        "[simulator] host code touched device memory; copy it to the host first (cuda/runtime.h)\n";
    if (write(STDERR_FILENO, message, sizeof(message) - 1) < 0) std::abort();
  }
  sigaction(SIGSEGV, &previous_handler, nullptr);  // on return the access is tried again, and reported there
}

uintptr_t program_start() {
  static const uintptr_t start = [] {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&program_start), &info);
    return reinterpret_cast<uintptr_t>(info.dli_fbase);
  }();
  return start;
}

/// Written as "file:line", where binutils and debug information tell.
struct Instruction {
  uint32_t code;
};
std::ostream& operator<<(std::ostream& out, Instruction instruction) {
  return out << source_lines({instruction.code})[0];
}

/// Written as the thread, and the place in the source.
std::ostream& operator<<(std::ostream& out, const Access& access) {
  if (access.thread >= several) {
    out << "several threads";
  } else if (access.thread >= several_of_a_warp) {
    out << "several threads of a warp";
  } else {
    out << "thread " << access.thread << (access.block == accessor.block ? "" : " of another block");
  }
  return out << " (" << Instruction{access.code} << ")";
}

/// Whether what was noted in the cell surely came before the access that is made now.
bool ordered(const Access& before, bool several_blocks) {
  const Accessor& now = accessor;
  if (before.block < now.launch) return true;
  if (before.block != now.block || several_blocks) return false;
  if (before.thread == now.thread || before.block_epoch != now.block_epoch) return true;
  const bool same_warp = before.thread < several_of_a_warp
                             ? before.thread / 32 == now.thread / 32
                             : before.thread == several_of_a_warp + now.thread / 32;
  return same_warp && before.warp_epoch != now.warp_epoch;
}

/// Stores that were reached, and the last one that was dropped, with what it is to leave as it was.
std::unordered_set<StoreSite> stores;
uintptr_t dropped_address;
std::vector<unsigned char> dropped_bytes;

struct CheckedAccess {
  uintptr_t address;
  uintptr_t bytes;
  uint32_t code;
  bool atomic;
};
std::ostream& operator<<(std::ostream& out, const CheckedAccess& access) {
  return out << " " << access.bytes << " bytes at " << Instruction{access.code} << ": ";
}

[[noreturn]] void fail_race(const CheckedAccess& access, const char* does, const char* what,
                            const Access& other) {
  fail_thread(str("race: ", does, " at ", Instruction{access.code}, " what ", other, " ", what,
                  " with no barrier between"));
}

Access noted(const CheckedAccess& access, uint8_t bytes) {
  const Accessor& now = accessor;
  return {now.block, access.code, now.thread, now.block_epoch, now.warp_epoch, bytes, access.atomic};
}

void check_against_write(const CheckedAccess& access, const char* does, const Cell& cell, uint8_t bytes) {
  const bool both_atomic = access.atomic && cell.write.atomic;
  if ((cell.write.bytes & bytes) != 0 && !both_atomic && !ordered(cell.write, false)) {
    fail_race(access, does, "wrote", cell.write);
  }
}

void note_read(const CheckedAccess& access, Cell& cell, uint8_t bytes) {
  check_against_write(access, "reads", cell, bytes);
  const Access before = cell.read;
  const bool concurrent = !ordered(before, cell.several_blocks_read);
  cell.read = noted(access, bytes);
  cell.several_blocks_read = concurrent && (cell.several_blocks_read || before.block != accessor.block);
  if (!concurrent) return;
  cell.read.bytes |= before.bytes;
  const uint16_t warp = several_of_a_warp + accessor.thread / 32;
  const bool same_warp = before.thread == warp ||
                         (before.thread < several_of_a_warp && before.thread / 32 == accessor.thread / 32);
  cell.read.thread = same_warp && !cell.several_blocks_read ? warp : several;
}

void note_write(const CheckedAccess& access, Cell& cell, uint8_t bytes) {
  check_against_write(access, "writes", cell, bytes);
  if ((cell.read.bytes & bytes) != 0 && !ordered(cell.read, cell.several_blocks_read)) {
    fail_race(access, "writes", "read", cell.read);
  }
  const bool same_writer = cell.write.block == accessor.block && cell.write.thread == accessor.thread;
  const uint8_t earlier = same_writer ? cell.write.bytes : 0;
  cell.write = noted(access, bytes | earlier);
  cell.written |= bytes;
}

bool is_built_in(uintptr_t address) {
  const auto within = [address](const auto& variable) {
    return address - reinterpret_cast<uintptr_t>(&variable) < sizeof(variable);
  };
  return within(threadIdx) || within(blockIdx) || within(blockDim) || within(gridDim);
}

[[noreturn]] void fail_address(const CheckedAccess& access, const char* does, const Allocation* near) {
  if (near == nullptr || access.address - near->begin >= near->bytes + page_bytes) {
    fail_thread(str(does, access, "no memory is allocated there"));
  }
  fail_thread(str(does, access, "out of bounds, at offset ", access.address - near->begin, " of ",
                  near->bytes, " bytes of ", near->shared ? "shared" : "device", " memory"));
}

enum class Kind { read, write };

bool is_dropped(StoreSite site) {
  return std::binary_search(options.dropped_stores.begin(), options.dropped_stores.end(), site);
}

void drop(const CheckedAccess& access) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(access.address);
  dropped_address = access.address;
  dropped_bytes.assign(bytes, bytes + access.bytes);
}

void check_access(const CheckedAccess& access, Kind kind) {
  const char* does = kind == Kind::read ? "reads" : "writes";
  if (!memory().contains(access.address)) {
    if (accessor.fiber->contains(access.address) || is_built_in(access.address)) return;
    fail_thread(str(does, access, "this is host memory, or a local variable of another thread"));
  }
  const Allocation* allocation = memory().find(access.address);
  if (allocation == nullptr ||
      access.address - allocation->begin + access.bytes > static_cast<uintptr_t>(allocation->bytes)) {
    fail_address(access, does, allocation);
  }
  if (allocation->shared) {
    if (kind == Kind::read) accessor.shared_bytes_read += access.bytes;
  } else {
    (kind == Kind::read ? accessor.bytes_read : accessor.bytes_written) += access.bytes;
  }
  if (access.address % std::min<uintptr_t>(16, std::bit_floor(access.bytes)) != 0) {
    fail_thread(str(does, access, "misaligned address"));
  }
  if (kind == Kind::write && !access.atomic) {
    stores.insert(access.code);
    if (is_dropped(access.code)) return drop(access);
  }
  for (uintptr_t at = access.address; at < access.address + access.bytes;) {
    const uintptr_t first = at % granule;
    const uintptr_t count = std::min(granule - first, access.address + access.bytes - at);
    const auto bytes = static_cast<uint8_t>(((1u << count) - 1) << first);
    Cell& cell = memory().cell(at);
    if ((kind == Kind::read || access.atomic) && !allocation->written && (bytes & ~cell.written) != 0) {
      fail_thread(str("reads", access, "nothing has written them (offset ",
                      access.address - allocation->begin, " of ", allocation->bytes, " bytes of ",
                      allocation->shared ? "shared" : "device", " memory)"));
    }
    kind == Kind::read ? note_read(access, cell, bytes) : note_write(access, cell, bytes);
    at += count;
  }
}

void on_access(const void* address, uintptr_t bytes, const void* code, Kind kind) {
  if (!accessor.active) return;
  accessor.active = false;  // what is called here may have been compiled to call this function, too
  undo_dropped_store();
  check_access({reinterpret_cast<uintptr_t>(address), bytes,
                static_cast<uint32_t>(reinterpret_cast<uintptr_t>(code) - program_start()), false},
               kind);
  accessor.active = true;
}

}  // namespace

void* allocate_memory(int64_t bytes) {
  return bytes == 0 ? nullptr : reinterpret_cast<void*>(memory().allocate(bytes, false).begin);
}

void release_memory(void* block) {
  if (block != nullptr) memory().release(reinterpret_cast<uintptr_t>(block));
}

void explain_host_accesses() {
  struct sigaction action = {};
  action.sa_sigaction = on_segmentation_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &previous_handler);
}

OpenMemory::OpenMemory() { memory().open(); }
OpenMemory::~OpenMemory() { memory().close(); }

namespace {

Allocation& allocation_of(const char* what, const void* address, int64_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  Allocation* allocation = memory().contains(at) ? memory().find(at) : nullptr;
  check(allocation != nullptr && at - allocation->begin + bytes <= static_cast<uintptr_t>(allocation->bytes),
        "[cuda] ", what, ": ", bytes, " bytes at ", address, " are not within one device allocation");
  return *allocation;
}

/// Calls body(cell, bytes of it) for all cells of a range.
template <class Body>
void for_each_cell(const void* address, int64_t bytes, const Body& body) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  for (uintptr_t at = begin; at < begin + bytes;) {
    const uintptr_t first = at % granule;
    const uintptr_t count = std::min(granule - first, begin + bytes - at);
    body(memory().cell(at), static_cast<uint8_t>(((1u << count) - 1) << first));
    at += count;
  }
}

}  // namespace

void check_range(const char* what, const void* address, int64_t bytes) {
  if (bytes > 0) allocation_of(what, address, bytes);
}

void check_written(const char* what, const void* address, int64_t bytes) {
  if (bytes == 0 || allocation_of(what, address, bytes).written) return;
  int64_t unwritten = 0;
  for_each_cell(address, bytes, [&](const Cell& cell, uint8_t mask) {
    unwritten += std::popcount(static_cast<uint8_t>(mask & ~cell.written));
  });
  check(unwritten == 0, "[cuda] ", what, ": of ", bytes, " bytes, ", unwritten, " were never written");
}

void mark_written(const void* address, int64_t bytes) {
  if (bytes == 0) return;
  Allocation& allocation = allocation_of("write", address, bytes);
  if (bytes == allocation.bytes) {
    allocation.written = true;
  } else {
    for_each_cell(address, bytes, [](Cell& cell, uint8_t mask) { cell.written |= mask; });
  }
}

void mark_unwritten(const void* block) {
  if (block == nullptr) return;
  Allocation& allocation = allocation_of("reuse", block, 1);
  allocation.written = false;
  memory().drop_cells(allocation.begin, allocation.bytes);
}

void clear_memory(void* address, int64_t bytes) {
  if (bytes == 0) return;
  const Allocation& allocation = allocation_of("fill", address, bytes);
  if (bytes == allocation.bytes)
    memory().drop_pages(allocation.begin, bytes);
  else
    std::memset(address, 0, bytes);
  mark_written(address, bytes);
}

std::vector<StoreSite> take_stores() {
  std::vector<StoreSite> sites(stores.begin(), stores.end());
  stores.clear();
  std::sort(sites.begin(), sites.end());
  return sites;
}

void undo_dropped_store() {
  if (dropped_bytes.empty()) return;
  std::memcpy(reinterpret_cast<void*>(dropped_address), dropped_bytes.data(), dropped_bytes.size());
  dropped_bytes.clear();
}

std::vector<std::string> source_lines(const std::vector<StoreSite>& sites) {
  static std::map<StoreSite, std::string> known;
  std::string unknown;
  std::vector<StoreSite> asked;
  for (const StoreSite site : sites) {
    if (known.contains(site)) continue;
    known[site] = str("instruction 0x", std::hex, site - 1);  // what was noted is where the call returns to
    unknown += str(" 0x", std::hex, site - 1);
    asked.push_back(site);
  }
  if (!asked.empty()) {
    const std::string command = str("addr2line -s -e /proc/", getpid(), "/exe", unknown, " 2>/dev/null");
    if (FILE* pipe = popen(command.c_str(), "r")) {
      char line[512];
      for (const StoreSite site : asked) {
        if (std::fgets(line, sizeof(line), pipe) == nullptr) break;
        const std::string_view place(line, std::strcspn(line, " \n"));  // a discriminator may follow
        if (!place.starts_with("??")) known[site] = place;
      }
      pclose(pipe);
    }
  }
  std::vector<std::string> lines;
  for (const StoreSite site : sites) lines.push_back(known[site]);
  return lines;
}

void* take_shared(void* place, int64_t bytes) {
  if (place == nullptr) return reinterpret_cast<void*>(memory().allocate(bytes, true).begin);
  memory().drop_cells(reinterpret_cast<uintptr_t>(place), bytes);
  return place;
}

template <class T>
T atomic_add(T* address, T value) {
  const uintptr_t code = reinterpret_cast<uintptr_t>(__builtin_return_address(0)) - program_start();
  accessor.active = false;
  undo_dropped_store();
  check_access({reinterpret_cast<uintptr_t>(address), sizeof(T), static_cast<uint32_t>(code), true},
               Kind::write);
  accessor.active = true;
  const T before = *address;
  *address = before + value;
  return before;
}
template int atomic_add(int*, int);
template unsigned atomic_add(unsigned*, unsigned);
template float atomic_add(float*, float);
template double atomic_add(double*, double);

}  // namespace mixgrad::simulator

// What the compiler calls at each load and store under -fsanitize=thread, and at the start of each file's
// code.
#define MIXGRAD_ACCESS(size)                                                  \
  void __tsan_read##size(void* address) {                                     \
    mixgrad::simulator::on_access(address, size, __builtin_return_address(0), \
                                  mixgrad::simulator::Kind::read);            \
  }                                                                           \
  void __tsan_write##size(void* address) {                                    \
    mixgrad::simulator::on_access(address, size, __builtin_return_address(0), \
                                  mixgrad::simulator::Kind::write);           \
  }                                                                           \
  void __tsan_unaligned_read##size(void* address) {                           \
    mixgrad::simulator::on_access(address, size, __builtin_return_address(0), \
                                  mixgrad::simulator::Kind::read);            \
  }                                                                           \
  void __tsan_unaligned_write##size(void* address) {                          \
    mixgrad::simulator::on_access(address, size, __builtin_return_address(0), \
                                  mixgrad::simulator::Kind::write);           \
  }

extern "C" {
MIXGRAD_ACCESS(1)
MIXGRAD_ACCESS(2)
MIXGRAD_ACCESS(4)
MIXGRAD_ACCESS(8)
MIXGRAD_ACCESS(16)
void __tsan_read_range(void* address, uintptr_t bytes) {
  mixgrad::simulator::on_access(address, bytes, __builtin_return_address(0), mixgrad::simulator::Kind::read);
}
void __tsan_write_range(void* address, uintptr_t bytes) {
  mixgrad::simulator::on_access(address, bytes, __builtin_return_address(0), mixgrad::simulator::Kind::write);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
