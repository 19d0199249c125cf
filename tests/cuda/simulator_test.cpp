// Each check of the simulator, on a small kernel that it must catch and on a right one that it must not. This
// file is compiled as the kernels are, so that the simulator sees each access.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "cuda/device_code.h"
#include "cuda/simulator/accesses.h"
#include "cuda/simulator/scheduler.h"
#include "tensor/error.h"

namespace mixgrad {
namespace {

/// Device memory of floats.
class Floats {
 public:
  explicit Floats(int64_t count)
      : data_(static_cast<float*>(cuda::allocate(Cuda{}, count * 4))), count_(count) {}
  Floats(int64_t count, float value) : Floats(count) {
    const std::vector<float> values(count, value);
    cuda::copy_to_device(Cuda{}, data_, values.data(), count * 4);
  }
  ~Floats() { cuda::release(Cuda{}, data_); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  float* data() { return data_; }
  std::vector<float> values() const {
    std::vector<float> result(count_);
    cuda::copy_to_host(Cuda{}, result.data(), data_, count_ * 4);
    return result;
  }

 private:
  float* data_;
  int64_t count_;
};

/// The message of the failure of a launch; "" when there is none.
template <auto kernel, class... Args>
std::string failure(dim3 blocks, dim3 threads, Args... args) {
  try {
    launch<kernel>(Cuda{}, {blocks, threads}, args...);
    cuda::synchronize(Cuda{});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A read that comes before its write, for want of a barrier, shows as one or the other.
bool shows_race(const std::string& message) {
  return contains(message, "race: ") || contains(message, "nothing has written them");
}

/// Restores the options at the end of a test.
struct WithOptions {
  explicit WithOptions(simulator::Options options) { simulator::options = options; }
  ~WithOptions() { simulator::options = {}; }
};

}  // namespace

namespace {

__global__ void fill_to(float* y, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = 1;
}

}  // namespace

TEST_CASE("cuda/simulator: an access outside an allocation is caught to the byte") {
  Floats y(100);
  CHECK(failure<fill_to>(2, 64, y.data(), 100) == "");
  const std::string message = failure<fill_to>(2, 64, y.data(), 101);
  CHECK(contains(message,
                 "fill_to, block (1, 0, 0), thread (36, 0, 0): writes 4 bytes at simulator_test.cpp:"));
  CHECK(contains(message, "out of bounds, at offset 400 of 400 bytes of device memory"));
  CHECK(contains(failure<fill_to>(1, 1, y.data() - 1, 1), "no memory is allocated there"));
  CHECK(failure<fill_to>(2, 64, y.data(), 100) == "");  // a failure does not disturb what follows
  float* released = nullptr;
  {
    Floats gone(4);
    released = gone.data();
  }
  CHECK(contains(failure<fill_to>(1, 1, released, 1), "no memory is allocated there"));
}

namespace {

/// y = x reversed, through shared memory of 64 floats of which `last` is the highest index written.
__global__ void reverse_to(const float* x, float* y, int last) {
  __shared__ SharedArray<float, 64> values;
  __shared__ SharedArray<float, 64> others;
  const int i = threadIdx.x;
  others[i] = 0;
  values[i == 63 ? last : i] = x[i];
  __syncthreads();
  y[i] = values[last - i] + others[i];
}

__global__ void fill_dynamic(float* y) {
  float* values = dynamic_shared<float>();
  values[threadIdx.x] = 1;
  y[threadIdx.x] = values[threadIdx.x];
}

std::string dynamic_failure(int64_t bytes, float* y) {
  try {
    launch<fill_dynamic>(Cuda{}, {1, 64, bytes}, y);
    cuda::synchronize(Cuda{});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("cuda/simulator: an access outside a shared array is caught though another one is near") {
  Floats x(64, 1);
  Floats y(64);
  CHECK(failure<reverse_to>(1, 64, x.data(), y.data(), 63) == "");
  CHECK(contains(failure<reverse_to>(1, 64, x.data(), y.data(), 64),
                 "thread (63, 0, 0): writes 4 bytes at simulator_test.cpp:"));
  CHECK(dynamic_failure(256, y.data()) == "");
  CHECK(
      contains(dynamic_failure(252, y.data()), "out of bounds, at offset 252 of 252 bytes of shared memory"));
  CHECK(contains(dynamic_failure(0, y.data()), "was launched with 0 bytes"));
}

namespace {

__global__ void misaligned(float* y, int offset) {
  *reinterpret_cast<double*>(y + 2 * threadIdx.x + offset) = 1;
}

__global__ void leak_address(float** where, float* y) {
  float local = 1;
  if (threadIdx.x == 0) *where = &local;
  __syncthreads();
  y[threadIdx.x] = **where + local;
}

}  // namespace

TEST_CASE("cuda/simulator: addresses that a device refuses are caught") {
  Floats y(64);
  CHECK(failure<misaligned>(1, 8, y.data(), 0) == "");
  CHECK(contains(failure<misaligned>(1, 8, y.data(), 1), "misaligned address"));
  float on_the_host[4] = {};
  CHECK(contains(failure<fill_to>(1, 4, on_the_host, 4), "this is host memory"));
  Floats pointer(2);
  auto** where = reinterpret_cast<float**>(pointer.data());
  CHECK(failure<leak_address>(1, 1, where, y.data()) == "");
  CHECK(contains(failure<leak_address>(1, 64, where, y.data()), "a local variable of another thread"));
}

namespace {

/// Threads from `count` on end before the barrier.
__global__ void barrier_of_some(float* y, unsigned count) {
  if (threadIdx.x >= count) return;
  __syncthreads();
  y[threadIdx.x] = 1;
}

__global__ void two_barriers(float* y, unsigned split) {
  if (threadIdx.x < split) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  y[threadIdx.x] = 1;
}

__global__ void count_even(int* y, int modulus) {
  *(y + threadIdx.x) = __syncthreads_count(threadIdx.x % modulus == 0);
}

/// The first 16 lanes of a warp wait for each other; the others wait for the block, or, with `all`, for them.
__global__ void deadlock(float* y, bool all) {
  if (threadIdx.x % 32 < 16)
    __syncwarp(0xFFFFFFFF);
  else if (all)
    __syncwarp(0xFFFFFFFF);
  else
    __syncthreads();
  y[threadIdx.x] = 1;
}

}  // namespace

TEST_CASE("cuda/simulator: barriers that some threads miss and deadlocks are caught") {
  Floats y(64);
  CHECK(failure<barrier_of_some>(1, 64, y.data(), 64u) == "");
  const std::string ended = failure<barrier_of_some>(1, 64, y.data(), 48u);
  CHECK(contains(ended, "divergent __syncthreads: 48 threads wait at simulator_test.cpp:"));
  CHECK(contains(ended, "but thread 48 has ended"));
  CHECK(failure<two_barriers>(1, 64, y.data(), 64) == "");
  CHECK(contains(failure<two_barriers>(1, 64, y.data(), 32), "but thread 32 waits at simulator_test.cpp:"));
  CHECK(failure<deadlock>(1, 64, y.data(), true) == "");
  CHECK(contains(failure<deadlock>(1, 64, y.data(), false),
                 "deadlock: 32 threads wait in __syncthreads, 32 in warp operations, 0 have ended"));
  Floats counts(64);
  CHECK(failure<count_even>(1, 64, reinterpret_cast<int*>(counts.data()), 3) == "");
  CHECK(std::bit_cast<int>(counts.values()[7]) == 22);
}

namespace {

__global__ void sum_of_warp(float* y, unsigned lanes, unsigned mask) {
  float value = threadIdx.x;
  if (threadIdx.x < lanes) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(mask, value, step);
  }
  y[threadIdx.x] = value;
}

__global__ void two_masks(float* y, unsigned mask_of_odd) {
  y[threadIdx.x] = __ballot_sync(threadIdx.x % 2 == 0 ? 0xFFFFFFFF : mask_of_odd, threadIdx.x < 3);
}

__global__ void shift(float* y) {
  const float up = __shfl_up_sync(0xFFFFFFFF, float(threadIdx.x), 1);
  const float down = __shfl_down_sync(0xFFFFFFFF, double(threadIdx.x), 2);
  y[threadIdx.x] = up + 100 * down + 10000 * __shfl_sync(0xFFFFFFFF, int(threadIdx.x), 5);
}

}  // namespace

TEST_CASE("cuda/simulator: shuffles give the right values and their bad masks are caught") {
  Floats y(32);
  CHECK(failure<sum_of_warp>(1, 32, y.data(), 32, 0xFFFFFFFF) == "");
  CHECK(y.values() == std::vector<float>(32, 496));
  CHECK(contains(failure<sum_of_warp>(1, 32, y.data(), 16, 0xFFFF),
                 "reads lane 16, which its mask leaves out"));
  CHECK(contains(failure<sum_of_warp>(1, 32, y.data(), 32, 0xFFFFFFF0), "its mask leaves out lane 0 itself"));
  CHECK(contains(failure<sum_of_warp>(1, 32, y.data(), 16, 0xFFFFFFFF), "deadlock"));
  CHECK(failure<two_masks>(1, 32, y.data(), 0xFFFFFFFF) == "");
  CHECK(y.values()[9] == 7);
  CHECK(contains(failure<two_masks>(1, 32, y.data(), 0x7FFFFFFF), "itself"));
  CHECK(contains(failure<two_masks>(1, 32, y.data(), 0xFFFFFFFE), "with another mask"));
  CHECK(contains(failure<two_masks>(1, 32, y.data(), 0xAAAAAAAA), "deadlock"));
  CHECK(failure<shift>(1, 32, y.data()) == "");
  CHECK(y.values()[0] == 50200);
  CHECK(y.values()[31] == 53130);
}

namespace {

enum class Guard { none, shuffle, warp, block };

template <Guard guard>
__device__ void order() {
  if (guard == Guard::shuffle) __shfl_sync(0xFFFFFFFF, 0, 0);
  if (guard == Guard::warp) __syncwarp();
  if (guard == Guard::block) __syncthreads();
}

/// Each thread reads what the one `distance` further wrote, then writes over what another one has read.
template <Guard before_read, Guard before_write>
__global__ void exchange(float* y, int distance) {
  __shared__ SharedArray<float, 64> values;
  const int i = threadIdx.x;
  values[i] = i;
  order<before_read>();
  const float other = values[(i + distance) % blockDim.x];
  order<before_write>();
  values[i] = other;
  y[i] = values[i];
}

/// All threads read one value that the first one then changes.
template <Guard guard>
__global__ void change_common(float* y) {
  __shared__ SharedArray<float, 1> common;
  if (threadIdx.x == 0) common[0] = 1;
  __syncthreads();
  const float value = common[0];
  order<guard>();
  if (threadIdx.x == 0) common[0] = value + 1;
  y[threadIdx.x] = value;
}

__global__ void write_modulo(float* y, int modulus) {
  y[(blockIdx.x * blockDim.x + threadIdx.x) % modulus] = 1;
}
__global__ void add_to_first(float* y) { atomicAdd(y, 1); }
__global__ void add_and_read(float* y, float* sum) { y[threadIdx.x] = atomicAdd(sum, 1) + *sum; }
/// The last block changes what all blocks read.
__global__ void read_by_blocks(const float* x, float* y, float* changed) {
  y[blockIdx.x] = *x;
  if (blockIdx.x + 1 == gridDim.x) *changed = 3;
}

}  // namespace

TEST_CASE("cuda/simulator: races are caught whatever the order of threads") {
  Floats y(64);
  for (const auto order :
       {simulator::Order::forward, simulator::Order::reverse, simulator::Order::shuffled}) {
    const WithOptions options({.order = order, .seed = 7});
    using enum Guard;
    CHECK(failure<exchange<block, block>>(1, 64, y.data(), 1) == "");
    CHECK(shows_race(failure<exchange<none, block>>(1, 64, y.data(), 1)));
    CHECK(shows_race(failure<exchange<block, none>>(1, 64, y.data(), 1)));
    // A barrier of the warp is enough for one warp; a shuffle orders no memory.
    CHECK(failure<exchange<warp, warp>>(1, 32, y.data(), 1) == "");
    CHECK(shows_race(failure<exchange<warp, block>>(1, 64, y.data(), 32)));
    CHECK(shows_race(failure<exchange<shuffle, warp>>(1, 32, y.data(), 1)));
    CHECK(failure<change_common<block>>(1, 64, y.data()) == "");
    CHECK(failure<change_common<warp>>(1, 32, y.data()) == "");
    CHECK(shows_race(failure<change_common<warp>>(1, 64, y.data())));
    CHECK(shows_race(failure<change_common<none>>(1, 32, y.data())));
    // Device memory, within a block and between blocks.
    CHECK(failure<write_modulo>(2, 32, y.data(), 64) == "");
    CHECK(shows_race(failure<write_modulo>(1, 64, y.data(), 63)));
    CHECK(contains(failure<write_modulo>(2, 32, y.data(), 32), "of another block"));
    Floats sum(1, 0);
    CHECK(failure<add_to_first>(4, 64, sum.data()) == "");
    CHECK(sum.values()[0] == 256);
    CHECK(shows_race(failure<add_and_read>(1, 64, y.data(), sum.data())));
    Floats x(1, 0);
    Floats changed(1);
    CHECK(failure<read_by_blocks>(3, 1, x.data(), y.data(), changed.data()) == "");
    CHECK(shows_race(failure<read_by_blocks>(3, 1, x.data(), y.data(), x.data())));
  }
  const std::string message = failure<write_modulo>(1, 64, y.data(), 63);
  CHECK(contains(message,
                 "write_modulo, block (0, 0, 0), thread (63, 0, 0): race: writes at simulator_test.cpp:"));
  CHECK(contains(message, "what thread 0 (simulator_test.cpp:"));
  CHECK(contains(message, ") wrote with no barrier between"));
}

namespace {

__global__ void read_unwritten(float* y, unsigned written) {
  __shared__ SharedArray<float, 64> values;
  if (threadIdx.x < written) values[threadIdx.x] = 1;
  __syncthreads();
  y[blockIdx.x * blockDim.x + threadIdx.x] = values[threadIdx.x];
}
__global__ void add_one(float* y) { y[threadIdx.x] += 1; }

}  // namespace

TEST_CASE("cuda/simulator: reads of memory that nobody wrote are caught") {
  Floats y(64);
  CHECK(contains(failure<add_one>(1, 64, y.data()),
                 "nothing has written them (offset 0 of 256 bytes of device"));
  CHECK(failure<read_unwritten>(2, 32, y.data(), 32) == "");
  // The second block does not see what the first one left.
  CHECK(
      contains(failure<read_unwritten>(1, 64, y.data(), 60), "nothing has written them (offset 252 of 256"));
  CHECK(failure<add_one>(1, 64, y.data()) == "");
  Floats half(64);
  CHECK(failure<fill_to>(1, 64, half.data(), 40) == "");
  try {
    half.values();
    FAIL("copied");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "[cuda] copy_to_host: of 256 bytes, 96 were never written");
  }
}

namespace {

__global__ void take_number(float* y, int* counter) { y[atomicAdd(counter, 1)] = threadIdx.x; }
__global__ void own_number(float* y, int* counter) {
  y[threadIdx.x] = threadIdx.x + 0 * atomicAdd(counter, 1);
}

template <auto kernel>
bool same_in_any_order() {
  std::vector<std::vector<float>> results;
  for (const auto order :
       {simulator::Order::forward, simulator::Order::reverse, simulator::Order::shuffled}) {
    const WithOptions options({.order = order});
    Floats y(64);
    Floats counter(1, 0);
    CHECK(failure<kernel>(1, 64, y.data(), reinterpret_cast<int*>(counter.data())) == "");
    results.push_back(y.values());
  }
  return results[0] == results[1] && results[0] == results[2];
}

}  // namespace

TEST_CASE("cuda/simulator: three orders of threads show what depends on the order") {
  CHECK(same_in_any_order<own_number>());
  CHECK_FALSE(same_in_any_order<take_number>());
}

namespace {

__global__ void much_shared(float* y) {
  __shared__ SharedArray<float, 12 * 1024> some;
  float* rest = dynamic_shared<float>();
  some[0] = 1;
  rest[0] = 2;
  *y = some[0] + rest[0];
}

std::string launch_failure(dim3 blocks, dim3 threads, int64_t shared_bytes, float* y) {
  try {
    launch<much_shared>(Cuda{}, {blocks, threads, shared_bytes}, y);
    cuda::synchronize(Cuda{});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("cuda/simulator: launches beyond the limits of a device are refused") {
  Floats y(1);
  CHECK(launch_failure(1, 1, 179 * 1024, y.data()) == "");
  CHECK(
      contains(launch_failure(1, 1, 180 * 1024, y.data()), "233472 bytes of shared memory; allowed: 232448"));
  CHECK(contains(launch_failure(1, 1, 228 * 1024, y.data()), "bytes of shared memory; allowed: 232448"));
  CHECK(
      contains(launch_failure(1, 1025, 64, y.data()), "a block of (1025, 1, 1) threads; allowed: 1 to 1024"));
  CHECK(contains(launch_failure(1, dim3(1, 1, 65), 64, y.data()), "64 along z"));
  CHECK(contains(launch_failure(0, 32, 64, y.data()), "a grid of (0, 1, 1) blocks"));
  CHECK(contains(launch_failure(dim3(1, 65536), 32, 64, y.data()), "65535 along y and z"));
}

TEST_CASE("cuda/simulator: host code that touches device memory ends with a message") {
  Floats y(1, 2);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    std::signal(SIGSEGV, SIG_DFL);  // instead of doctest's
    simulator::explain_host_accesses();
    _exit(*y.data() > 0);
  }
  close(ends[1]);
  std::string message;
  for (char c; read(ends[0], &c, 1) == 1;) message.push_back(c);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK(contains(message, "[simulator] host code touched device memory; copy it to the host first"));
  CHECK(y.values()[0] == 2);
}

TEST_CASE("cuda/simulator: without a synchronise the host sees nothing") {
  Floats y(4, 5);
  launch<fill_to>(Cuda{}, {1, 4}, y.data(), 4);
  std::vector<float> seen(4, 7);
  cuda::copy_to_host_later(Cuda{}, seen.data(), y.data(), 16);
  CHECK(std::isnan(seen[0]));
  cuda::synchronize(Cuda{});
  CHECK(seen == std::vector<float>(4, 1));
}

TEST_CASE("cuda/simulator: streams wait for events and for nothing else") {
  const cuda::Stream first;
  const cuda::Stream second;
  Floats y(4, 5);
  launch<fill_to>(first.device(), {1, 4}, y.data(), 4);
  launch<add_one>(second.device(), {1, 4}, y.data());
  cuda::synchronize(second.device());
  CHECK(y.values()[0] == 6);  // the first stream is still to come
  cuda::Event written;
  written.record(first.device());
  written.wait_on(second.device());
  launch<add_one>(second.device(), {1, 4}, y.data());
  cuda::synchronize(second.device());
  CHECK(y.values()[0] == 2);
}

namespace {

template <class Index>
__global__ void fill_all(float* y, int64_t count) {
  const Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) y[i] = 1;
}

}  // namespace

TEST_CASE("cuda/simulator: arrays of more than 2^31 elements need no memory to be tried") {
  const int64_t count = (int64_t{1} << 31) + 100;
  const dim3 blocks(static_cast<unsigned>((count + 255) / 256));
  const WithOptions options({.end_blocks = 2});
  Floats y(count);
  CHECK(failure<fill_all<int64_t>>(blocks, 256, y.data(), count) == "");
  float last = 0;
  cuda::copy_to_host(Cuda{}, &last, y.data() + count - 1, 4);
  CHECK(last == 1);
  CHECK(contains(failure<fill_all<int>>(blocks, 256, y.data(), count), "writes 4 bytes"));
}

TEST_CASE("cuda/simulator: each barrier can be left out and is seen to be needed") {
  Floats y(64);
  simulator::clear_launch_log();
  CHECK(failure<exchange<Guard::block, Guard::block>>(1, 64, y.data(), 1) == "");
  REQUIRE(simulator::launch_log().size() == 1);
  const simulator::LaunchRecord record = simulator::launch_log()[0];
  CHECK(contains(record.kernel, "exchange"));
  CHECK(record.shared_bytes == 256);
  CHECK(record.bytes_read == 0);
  CHECK(record.bytes_written == 256);
  CHECK(record.barriers.size() == 1);  // one line calls both
  for (const simulator::CallSite barrier : record.barriers) {
    const WithOptions options({.skipped_barrier = barrier});
    CHECK(shows_race(failure<exchange<Guard::block, Guard::block>>(1, 64, y.data(), 1)));
  }
}

namespace {

/// y = x + 1, by way of shared memory; `idle` is written, and written again.
__global__ void add_one_shared(const float* x, float* y, float* idle) {
  __shared__ SharedArray<float, 64> values;
  values[threadIdx.x] = x[threadIdx.x];
  idle[threadIdx.x] = 0;
  __syncthreads();
  idle[threadIdx.x] = 1;
  y[threadIdx.x] = values[threadIdx.x] + 1;
}

}  // namespace

TEST_CASE("cuda/simulator: each store can be dropped and is seen to be needed or not") {
  Floats x(64, 2);
  Floats y(64, 9);
  Floats idle(64, 9);
  const auto run = [&] { return failure<add_one_shared>(1, 64, x.data(), y.data(), idle.data()); };
  simulator::clear_launch_log();
  CHECK(run() == "");
  const std::vector<simulator::StoreSite> stores = simulator::launch_log()[0].stores;
  REQUIRE(stores.size() == 4);
  for (const std::string& line : simulator::source_lines(stores))
    CHECK(contains(line, "simulator_test.cpp:"));
  int not_written = 0;
  int in_y = 0;
  int in_idle = 0;
  for (const simulator::StoreSite store : stores) {
    const std::vector<float> nines(64, 9);
    cuda::copy_to_device(Cuda{}, y.data(), nines.data(), 256);
    cuda::copy_to_device(Cuda{}, idle.data(), nines.data(), 256);
    const WithOptions options({.dropped_stores = {store}});
    const bool failed = contains(run(), "nothing has written them");
    not_written += failed;
    in_y += !failed && y.values() == nines;
    in_idle += idle.values() == std::vector<float>(64, 0);
  }
  CHECK(not_written == 1);  // the shared one
  CHECK(in_y == 1);
  CHECK(in_idle == 1);  // of the two, the second
}

}  // namespace mixgrad
