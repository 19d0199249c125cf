// A kernel on the GPU, real or simulated, against the same kernel on the CPU.
//
// In the simulator each kernel also runs with its threads in other orders, which must not change a bit, and
// once without each of its barriers, which must be noticed: as an error, or by a result that differs.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/runtime.h"
#include "tensor/error.h"
#include "tensor/kernels/gemm.h"
#if defined(MIXGRAD_CUDA_SIMULATED)
#include "cuda/simulator/scheduler.h"
#endif

namespace mixgrad {

/// Values in [-1, 1] that differ from each other, in no simple order.
template <class T>
std::vector<T> waves(int64_t count, double phase = 0) {
  std::vector<T> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(std::sin(0.7 * static_cast<double>(i * i % 1009) + phase));
  }
  return values;
}

/// Computes products on the GPU with operands in bfloat16 while it lives.
struct InBf16 {
  InBf16() { set_matrix_precision(MatrixPrecision::bfloat16, Cuda{}); }
  ~InBf16() { set_matrix_precision(MatrixPrecision::float32); }
};

/// The arrays of one call of a kernel on one device.
template <class Device>
class Operands {
 public:
  ~Operands() {
    for (void* block : blocks_) release(block);
  }

  /// A copy of values on the device.
  template <class T>
  const T* in(const std::vector<T>& values) {
    return place(values);
  }
  /// Room for a result.
  template <class T>
  T* out(int64_t count) {
    return result(allocate<T>(count), count);
  }
  /// A result that the kernel changes in place.
  template <class T>
  T* in_out(const std::vector<T>& values) {
    return result(place(values), values.size());
  }

  /// A result that the kernel returns.
  void returned(double value) {
    results_.push_back([value] { return std::vector<double>{value}; });
  }

  /// What is in the results now, in the order in which they were made.
  std::vector<std::vector<double>> results() const {
    std::vector<std::vector<double>> all;
    for (const auto& fetch : results_) all.push_back(fetch());
    return all;
  }

 private:
  static constexpr bool on_host = std::is_same_v<Device, Cpu>;

  template <class T>
  T* allocate(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    if constexpr (on_host)
      blocks_.push_back(std::malloc(bytes));
    else
      blocks_.push_back(cuda::allocate(Cuda{}, bytes));
    return static_cast<T*>(blocks_.back());
  }
  template <class T>
  T* place(const std::vector<T>& values) {
    T* block = allocate<T>(values.size());
    if constexpr (on_host)
      std::copy(values.begin(), values.end(), block);
    else
      cuda::copy_to_device(Cuda{}, block, values.data(), values.size() * sizeof(T));
    return block;
  }
  template <class T>
  T* result(T* block, int64_t count) {
    results_.push_back([block, count] {
      std::vector<T> values(count);
      if constexpr (on_host)
        std::copy_n(block, count, values.begin());
      else
        cuda::copy_to_host(Cuda{}, values.data(), block, count * sizeof(T));
      return std::vector<double>(values.begin(), values.end());
    });
    return block;
  }
  static void release(void* block) {
    if constexpr (on_host)
      std::free(block);
    else
      cuda::release(Cuda{}, block);
  }

  std::vector<void*> blocks_;
  std::vector<std::function<std::vector<double>()>> results_;
};

using Results = std::vector<std::vector<double>>;

/// The largest |a - b| / (1 + |b|) over all results; NaN where only one is NaN, or an infinity is not the
/// same.
inline double difference(const Results& a, const Results& b) {
  double largest = 0;
  REQUIRE(a.size() == b.size());
  for (size_t r = 0; r < a.size(); ++r) {
    REQUIRE(a[r].size() == b[r].size());
    for (size_t i = 0; i < a[r].size(); ++i) {
      if (a[r][i] == b[r][i] || (std::isnan(a[r][i]) && std::isnan(b[r][i]))) continue;
      const double error = std::abs(a[r][i] - b[r][i]) / (1 + std::abs(b[r][i]));
      if (!(error <= largest)) largest = error;
      if (std::isnan(largest)) return largest;
    }
  }
  return largest;
}

/// Calls call(device, operands) and returns the results.
template <class Device, class F>
Results results_of(const F& call) {
  Operands<Device> operands;
  call(Device{}, operands);
  return operands.results();
}

#if defined(MIXGRAD_CUDA_SIMULATED)

/// The barriers that were reached since the last check_barriers, and whether a run without them was noticed.
inline std::vector<std::pair<simulator::CallSite, bool>>& barriers() {
  static std::vector<std::pair<simulator::CallSite, bool>> all;
  return all;
}

/// Checks that other orders of threads give the same bits, and tries to do without each barrier.
template <class F>
void vary_order_and_barriers(const F& call, const Results& expected, double tolerance) {
  using namespace simulator;
  for (const Order order : {Order::reverse, Order::shuffled}) {
    options.order = order;
    CAPTURE(static_cast<int>(order));
    CHECK(difference(results_of<Cuda>(call), expected) == 0);
  }
  options = {};
  for (const LaunchRecord& record : launch_log()) {
    if (record.threads.x <= 32) continue;  // in a block of one warp each lane may be its own only reader
    for (const CallSite& site : record.barriers) {
      const auto known = [&](const auto& barrier) { return barrier.first == site; };
      if (std::none_of(barriers().begin(), barriers().end(), known)) barriers().emplace_back(site, false);
    }
  }
  for (auto& [site, noticed] : barriers()) {
    if (noticed) continue;
    options.skipped_barrier = site;
    try {
      noticed = !(difference(results_of<Cuda>(call), expected) <= tolerance);
    } catch (const Error&) {
      noticed = true;
    }
    options = {};
  }
}

#endif

/// Checks in the simulator that each barrier that check_same came by is needed by some call.
inline void check_barriers() {
#if defined(MIXGRAD_CUDA_SIMULATED)
  for (const auto& [site, noticed] : barriers()) {
    CHECK_MESSAGE(noticed, "nobody misses the barrier at ", std::string(site.file), ":", site.line);
  }
  barriers().clear();
#endif
}

/// Checks that call(device, operands), which runs a kernel on arrays that it takes from operands, has the
/// same results on both devices. A machine without a GPU has nothing to compare with.
template <class F>
void check_same(double tolerance, const F& call) {
  if (cuda::device_count() == 0) {
    MESSAGE("not run: ", cuda::why_unavailable());
    return;
  }
#if defined(MIXGRAD_CUDA_SIMULATED)
  simulator::clear_launch_log();
#endif
  const Results expected = results_of<Cpu>(call);
  const Results results = results_of<Cuda>(call);
  CHECK(difference(results, expected) <= tolerance);
#if defined(MIXGRAD_CUDA_SIMULATED)
  vary_order_and_barriers(call, results, tolerance);
#endif
}

/// Checks in the simulator that a kernel of this name ran since the last check_same began.
inline void check_ran([[maybe_unused]] const std::string& kernel) {
#if defined(MIXGRAD_CUDA_SIMULATED)
  const auto& log = simulator::launch_log();
  const bool found = std::any_of(log.begin(), log.end(), [&](const auto& record) {
    return record.kernel == kernel ||
           record.kernel.starts_with(kernel + "<");  // clang leaves out the arguments
  });
  CHECK_MESSAGE(found, kernel, " did not run");
#endif
}

}  // namespace mixgrad
