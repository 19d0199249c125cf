// Running a grid of simulated threads.
#include "cuda/simulator/scheduler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <utility>

#include "cuda/simulator/accesses.h"
#include "cuda/simulator/fiber.h"
#include "tensor/error.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

static std::ostream& operator<<(std::ostream& out, const uint3& index) {
  return out << "(" << index.x << ", " << index.y << ", " << index.z << ")";
}
static std::ostream& operator<<(std::ostream& out, const dim3& sizes) {
  return out << uint3{sizes.x, sizes.y, sizes.z};
}

namespace mixgrad::simulator {

Options options;

namespace {

constexpr int64_t max_threads = 1024;
constexpr unsigned warp_size = 32;

struct Thread {
  Fiber* fiber = nullptr;  // while it waits
  Meeting waits_for = Meeting::none;
  CallSite site;
  unsigned mask = 0;
  uint64_t value = 0;
  int source = 0;
  uint64_t result = 0;
  uint16_t warp_epoch = 0;
  bool ended = false;
};

struct Warp {
  unsigned lanes = 0;    // that exist
  unsigned arrived = 0;  // that wait for others
};

uint3 index_of(int64_t linear, const dim3& sizes) {
  const int64_t rows = linear / sizes.x;
  return {static_cast<unsigned>(linear % sizes.x), static_cast<unsigned>(rows % sizes.y),
          static_cast<unsigned>(rows / sizes.y)};
}

/// The launch that runs now, and the stacks that all launches share.
class Scheduler {
 public:
  void run(const Grid& grid) {
    begin_launch(grid);
    const int64_t blocks = int64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
    std::vector<int64_t> order;
    for (int64_t block = 0; block < blocks; ++block) {
      const bool middle = options.end_blocks > 0 && block >= options.end_blocks;
      if (middle && block < blocks - options.end_blocks) block = blocks - options.end_blocks;
      order.push_back(block);
    }
    arrange(order);
    for (const int64_t block : order) {
      run_block(index_of(block, grid.blocks));
      if (!failure_.empty()) break;
    }
    end_launch();
    if (!failure_.empty()) throw Error("[cuda] " + failure_);
  }

  bool begin_thread() {
    if (unstarted_.empty()) return false;
    enter(unstarted_.front());
    unstarted_.pop_front();
    accessor.active = true;
    return true;
  }

  void end_thread() {
    accessor.active = false;
    undo_dropped_store();
    current().ended = true;
    --alive_;
    if (at_barrier_ > 0) fail_barrier("thread ", index_, " has ended");
  }

  int meet_block(int predicate, CallSite site) {
    const Quiet quiet;
    if (skips(site)) return 0;
    if (at_barrier_ == 0) {
      barrier_ = site;
      predicates_ = 0;
    }
    if (!(site == barrier_)) fail_barrier("thread ", index_, " waits at ", site);
    if (alive_ < threads_.size()) {
      fail_thread(str("__syncthreads at ", site, ": ", threads_.size() - alive_, " of ", threads_.size(),
                      " threads have ended"));
    }
    predicates_ += predicate != 0;
    if (++at_barrier_ < alive_) {
      wait(Meeting::block_barrier, site);
    } else {
      at_barrier_ = 0;
      count_ = predicates_;
      ++block_epoch_;
      for (unsigned i = 0; i < threads_.size(); ++i) {
        if (i != index_) go_on(i);
      }
    }
    accessor.block_epoch = block_epoch_;
    return count_;
  }

  uint64_t meet_warp(Meeting meeting, unsigned mask, uint64_t value, int source, CallSite site) {
    const Quiet quiet;
    if (meeting == Meeting::warp_barrier && skips(site)) return 0;
    const unsigned lane = index_ % warp_size;
    Warp& warp = warps_[index_ / warp_size];
    if (meeting == Meeting::product && warp.lanes != mask)
      fail_thread(str("product of a warp at ", site, ": the warp has ", std::popcount(warp.lanes), " lanes"));
    mask &= warp.lanes;
    if ((mask >> lane & 1) == 0)
      fail_thread(str("warp operation at ", site, ": its mask leaves out lane ", lane, " itself"));
    if (meeting == Meeting::shuffle && (mask >> source & 1) == 0) {
      fail_thread(str("shuffle at ", site, ": reads lane ", source, ", which its mask leaves out"));
    }
    Thread& me = current();
    me.mask = mask;
    me.value = value;
    me.source = source;
    me.waits_for = meeting;
    me.site = site;
    warp.arrived |= 1u << lane;
    if ((warp.arrived & mask) != mask)
      wait(meeting, site);
    else
      complete(warp, meeting, mask, site);
    accessor.warp_epoch = me.warp_epoch;
    return me.result;
  }

  [[noreturn]] void fail_thread(std::string&& message) {
    accessor.active = false;
    failure_ = str(grid_->kernel, ", block ", blockIdx, ", thread ", threadIdx, ": ");
    failure_ += message;
    std::string().swap(message);  // nothing on this stack will be destroyed
    running_->switch_to(main_);
    __builtin_unreachable();
  }

  void* shared_array(SharedSlot& slot, int64_t bytes) {
    const Quiet quiet;
    return take(slot, bytes);
  }

  void* dynamic_shared_array() {
    const Quiet quiet;
    const int64_t bytes = grid_->dynamic_shared_bytes;
    if (bytes == 0) fail_thread("uses dynamic shared memory, but was launched with 0 bytes");
    return take(dynamic_shared_[bytes], bytes);
  }

  std::vector<LaunchRecord> log;

 private:
  /// The simulator's own code reads and writes what it likes.
  struct Quiet {
    Quiet() {
      accessor.active = false;
      undo_dropped_store();
    }
    ~Quiet() { accessor.active = true; }
  };

  Thread& current() { return threads_[index_]; }

  /// The slot's memory in this block, counted when it is taken for the first time.
  void* take(SharedSlot& slot, int64_t bytes) {
    if (slot.block != accessor.block) {
      slot.data = take_shared(slot.data, bytes);
      slot.block = accessor.block;
      shared_bytes_ += bytes;
      if (shared_bytes_ > max_shared_bytes) {
        fail_thread(str(shared_bytes_, " bytes of shared memory; allowed: ", max_shared_bytes));
      }
      log.back().shared_bytes = std::max(log.back().shared_bytes, shared_bytes_);
    }
    return slot.data;
  }

  template <class T>
  void arrange(std::vector<T>& items) {
    if (options.order == Order::reverse) std::reverse(items.begin(), items.end());
    if (options.order == Order::shuffled) std::shuffle(items.begin(), items.end(), random_);
  }

  void begin_launch(const Grid& grid) {
    grid_ = &grid;
    failure_.clear();
    random_.seed(options.seed);
    LaunchRecord& record = log.emplace_back();
    record.kernel = grid.kernel;
    record.blocks = grid.blocks;
    record.threads = grid.threads;
    blockDim = grid.threads;
    gridDim = grid.blocks;
    accessor.launch = blocks_run_ + 1;
    accessor.bytes_read = accessor.bytes_written = accessor.shared_bytes_read = 0;
    take_stores();
  }

  void end_launch() {
    log.back().bytes_read = accessor.bytes_read;
    log.back().bytes_written = accessor.bytes_written;
    log.back().shared_bytes_read = accessor.shared_bytes_read;
    log.back().stores = take_stores();
  }

  void run_block(const uint3& block) {
    blockIdx = block;
    accessor.block = ++blocks_run_;
    const unsigned count = grid_->threads.x * grid_->threads.y * grid_->threads.z;
    threads_.assign(count, {});
    warps_.assign((count + warp_size - 1) / warp_size, {});
    for (unsigned i = 0; i < count; ++i) warps_[i / warp_size].lanes |= 1u << i % warp_size;
    std::vector<unsigned> order(count);
    std::iota(order.begin(), order.end(), 0);
    arrange(order);
    unstarted_.assign(order.begin(), order.end());
    ready_.clear();
    alive_ = count;
    at_barrier_ = 0;
    block_epoch_ = 0;
    shared_bytes_ = 0;
    main_.switch_to(*take_fiber());
    if (failure_.empty() && alive_ > 0) failure_ = describe_deadlock();
    if (!failure_.empty()) abandon_stacks();
  }

  /// Makes thread i the one that runs.
  void enter(unsigned i) {
    index_ = i;
    threadIdx = index_of(i, grid_->threads);
    accessor.thread = static_cast<uint16_t>(i);
    accessor.block_epoch = block_epoch_;
    accessor.warp_epoch = threads_[i].warp_epoch;
    accessor.fiber = running_;
  }

  void go_on(unsigned i) {
    threads_[i].waits_for = Meeting::none;
    ready_.push_back(i);
  }

  /// The thread that runs stops here, and goes on when another one says so.
  void wait(Meeting meeting, CallSite site) {
    const unsigned me = index_;
    threads_[me].fiber = running_;
    threads_[me].waits_for = meeting;
    threads_[me].site = site;
    threads_[me].fiber->switch_to(choose_next());
    enter(me);
  }

  /// The fiber that goes on: that of a thread that hasn't started, of one that is ready, or the main program.
  Fiber& choose_next() {
    if (!unstarted_.empty()) return *take_fiber();
    running_ = nullptr;
    if (ready_.empty()) return main_;
    if (options.order == Order::shuffled) std::swap(ready_.front(), ready_[random_() % ready_.size()]);
    const unsigned next = options.order == Order::reverse ? ready_.back() : ready_.front();
    options.order == Order::reverse ? ready_.pop_back() : ready_.pop_front();
    running_ = threads_[next].fiber;
    return *running_;
  }

  Fiber* take_fiber() {
    if (idle_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>(&Scheduler::fiber_entry));
      idle_.push_back(fibers_.back().get());
    }
    running_ = idle_.back();
    idle_.pop_back();
    return running_;
  }

  static void fiber_entry();

  void run_fiber() {
    for (;;) {
      grid_->run_threads(grid_->closure);
      Fiber* const me = running_;
      idle_.push_back(me);
      me->switch_to(choose_next());
      running_ = me;
    }
  }

  void abandon_stacks() {
    idle_.clear();
    for (const auto& fiber : fibers_) {
      fiber->restart();
      idle_.push_back(fiber.get());
    }
  }

  bool skips(CallSite site) {
    std::vector<CallSite>& reached = log.back().barriers;
    if (std::find(reached.begin(), reached.end(), site) == reached.end()) reached.push_back(site);
    return site == options.skipped_barrier;
  }

  template <class... Parts>
  [[noreturn]] void fail_barrier(const Parts&... other) {
    fail_thread(
        str("divergent __syncthreads: ", at_barrier_, " threads wait at ", barrier_, ", but ", other...));
  }

  /// All lanes of the mask are here: computes what each gets, and lets the others go on.
  void complete(Warp& warp, Meeting meeting, unsigned mask, CallSite site) {
    Thread* lanes = &threads_[index_ / warp_size * warp_size];
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < warp_size; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      const Thread& other = lanes[lane];
      if (other.mask != mask || other.waits_for != meeting) {
        fail_thread(str("divergent warp operation at ", site, ": lane ", lane, " is at ", other.site,
                        other.mask != mask ? " with another mask" : " in another operation"));
      }
      ballot |= static_cast<unsigned>(other.value != 0) << lane;
    }
    if (meeting == Meeting::product) multiply_lanes(lanes);
    for (unsigned lane = 0; lane < warp_size; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      Thread& other = lanes[lane];
      other.result = meeting == Meeting::shuffle ? lanes[other.source].value : ballot;
      // Only __syncwarp orders memory; a shuffle moves registers.
      if (meeting == Meeting::warp_barrier) ++other.warp_epoch;
      if (&other != &current()) go_on(static_cast<unsigned>(&other - threads_.data()));
    }
    current().waits_for = Meeting::none;
    warp.arrived &= ~mask;
  }

  /// mma.sync: every lane's value is the address of its ProductLane.
  void multiply_lanes(Thread* lanes) {
    float a[16][16], b[16][8];
    const auto half = [](uint32_t word, int high) {
      return std::bit_cast<float>(high == 0 ? word << 16 : word & 0xFFFF0000);
    };
    const auto registers = [&](int lane) { return reinterpret_cast<ProductLane*>(lanes[lane].value); };
    for (int lane = 0; lane < int{warp_size}; ++lane) {
      const int g = lane / 4;
      const int t = lane % 4 * 2;
      for (int high = 0; high < 2; ++high) {
        for (int i = 0; i < 4; ++i) {
          a[g + i % 2 * 8][t + high + i / 2 * 8] = half(registers(lane)->a[i], high);
        }
        for (int i = 0; i < 2; ++i) b[t + high + i * 8][g] = half(registers(lane)->b[i], high);
      }
    }
    for (int lane = 0; lane < int{warp_size}; ++lane) {
      for (int i = 0; i < 4; ++i) {
        float& sum = registers(lane)->c[i];
        for (int k = 0; k < 16; ++k) sum += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
      }
    }
  }

  std::string describe_deadlock() const {
    int at_block = 0;
    int at_warp = 0;
    const Thread* example = nullptr;
    for (const Thread& thread : threads_) {
      if (thread.ended) continue;
      ++(thread.waits_for == Meeting::block_barrier ? at_block : at_warp);
      example = &thread;
    }
    return str(grid_->kernel, ", block ", blockIdx, ": deadlock: ", at_block,
               " threads wait in __syncthreads, ", at_warp, " in warp operations, ", threads_.size() - alive_,
               " have ended; thread ", example - threads_.data(), " waits at ", example->site);
  }

  const Grid* grid_ = nullptr;
  std::string failure_;
  std::mt19937 random_;
  uint32_t blocks_run_ = 0;  // of all launches

  std::vector<Thread> threads_;  // of the block
  std::vector<Warp> warps_;
  std::deque<unsigned> unstarted_;
  std::deque<unsigned> ready_;  // have waited, and may go on
  unsigned index_ = 0;          // the thread that runs
  size_t alive_ = 0;
  int64_t shared_bytes_ = 0;
  std::map<int64_t, SharedSlot> dynamic_shared_;  // by size

  CallSite barrier_;       // that the block waits at
  size_t at_barrier_ = 0;  // threads there
  int predicates_ = 0;     // of them true
  int count_ = 0;          // result of the last one
  uint16_t block_epoch_ = 0;

  Fiber main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* running_ = nullptr;
};

Scheduler& scheduler() {
  static Scheduler* const instance = new Scheduler;
  return *instance;
}

void Scheduler::fiber_entry() { scheduler().run_fiber(); }

}  // namespace

bool begin_thread() { return scheduler().begin_thread(); }
void end_thread() { scheduler().end_thread(); }
int meet_block(int predicate, CallSite site) { return scheduler().meet_block(predicate, site); }
uint64_t meet_warp(Meeting meeting, unsigned mask, uint64_t value, int source, CallSite site) {
  return scheduler().meet_warp(meeting, mask, value, source, site);
}
int lane_of_this_thread() { return accessor.thread % warp_size; }
void multiply_add(ProductLane& lane, CallSite site) {
  meet_warp(Meeting::product, 0xFFFFFFFF, reinterpret_cast<uint64_t>(&lane), 0, site);
}
void* shared_array(SharedSlot& slot, int64_t bytes) { return scheduler().shared_array(slot, bytes); }
void* dynamic_shared_array() { return scheduler().dynamic_shared_array(); }
void fail_thread(std::string&& message) { scheduler().fail_thread(std::move(message)); }

std::ostream& operator<<(std::ostream& out, const CallSite& site) {
  const std::string_view path = site.file;
  return out << path.substr(path.rfind('/') + 1) << ':' << site.line;
}

const std::vector<LaunchRecord>& launch_log() { return scheduler().log; }
void clear_launch_log() { scheduler().log.clear(); }

void check_limits(const Grid& grid) {
  const int64_t threads = int64_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  check(threads >= 1 && threads <= max_threads && grid.threads.z <= 64, "[cuda] ", grid.kernel,
        ": a block of ", grid.threads, " threads; allowed: 1 to ", max_threads, " in all, 64 along z");
  const bool some = grid.blocks.x >= 1 && grid.blocks.y >= 1 && grid.blocks.z >= 1;
  check(some && grid.blocks.x <= 0x7FFFFFFF && grid.blocks.y <= 65535 && grid.blocks.z <= 65535, "[cuda] ",
        grid.kernel, ": a grid of ", grid.blocks,
        " blocks; allowed: 1 to 2147483647 along x, 65535 along y and z");
  check(grid.dynamic_shared_bytes <= max_shared_bytes, "[cuda] ", grid.kernel, ": ",
        grid.dynamic_shared_bytes, " bytes of shared memory; allowed: ", max_shared_bytes);
}

void run_grid(const Grid& grid) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const OpenMemory open;
  scheduler().run(grid);
}

std::string kernel_name(std::string_view pretty_function) {
  constexpr std::string_view start = "kernel = ";
  std::string name(pretty_function.substr(pretty_function.find(start) + start.size()));
  name.resize(name.find("; Args") != std::string::npos ? name.find("; Args") : name.find_first_of(",]"));
  for (const std::string noise : {"mixgrad::", "{anonymous}::", "(anonymous namespace)::", "&"}) {
    for (size_t at; (at = name.find(noise)) != std::string::npos;) name.erase(at, noise.size());
  }
  return name;
}

}  // namespace mixgrad::simulator
