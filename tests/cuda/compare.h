// A kernel on the GPU, real or simulated, against the same kernel on the CPU.
//
// In the simulator each kernel also runs with its threads in other orders, which must not change a bit, once
// without each of its barriers, and once without the stores of each of its lines. What was left out must be
// noticed: as an error, or by a result that differs.
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

/// A barrier or the stores of one line of a kernel, and whether a run without was noticed.
struct Part {
  std::string name;
  simulator::CallSite barrier = {};
  std::vector<simulator::StoreSite> stores = {};
  bool noticed = false;
};

/// Parts that were reached in a test case since they were last checked.
struct Parts {
  const void* test_case = nullptr;
  std::vector<Part> barriers, stores;
};
inline Parts parts_of_test;
inline Parts& parts() {
  const void* const now = doctest::getContextOptions()->currentTest;
  if (parts_of_test.test_case != now) parts_of_test = {.test_case = now, .barriers = {}, .stores = {}};
  return parts_of_test;
}

/// The part of this name; a new one if there is none.
inline Part& part_named(std::vector<Part>& parts, const std::string& name) {
  const auto found =
      std::find_if(parts.begin(), parts.end(), [&](const Part& part) { return part.name == name; });
  return found != parts.end() ? *found : parts.emplace_back(Part{name});
}

/// Adds the parts that a launch came by.
inline void collect_parts(const simulator::LaunchRecord& record) {
  if (record.threads.x > 32) {  // in a block of one warp each lane may be its own only reader
    for (const simulator::CallSite& site : record.barriers) {
      part_named(parts().barriers, str("the barrier at ", site)).barrier = site;
    }
  }
  const std::vector<std::string> lines = simulator::source_lines(record.stores);
  for (size_t i = 0; i < lines.size(); ++i) {
    auto& stores = part_named(parts().stores, str("what ", record.kernel, " stores at ", lines[i])).stores;
    const auto place = std::lower_bound(stores.begin(), stores.end(), record.stores[i]);
    if (place == stores.end() || *place != record.stores[i]) stores.insert(place, record.stores[i]);
  }
}

/// Runs the call without each part that was not missed so far.
template <class F>
void do_without(std::vector<Part>& parts, const F& call, const Results& expected, double tolerance) {
  for (Part& part : parts) {
    if (part.noticed) continue;
    simulator::options.skipped_barrier = part.barrier;
    simulator::options.dropped_stores = part.stores;
    try {
      part.noticed = !(difference(results_of<Cuda>(call), expected) <= tolerance);
    } catch (const Error&) {
      part.noticed = true;
    }
    simulator::options = {};
  }
}

/// Checks that other orders of threads give the same bits, and tries to do without each barrier and store.
template <class F>
void vary(const F& call, const Results& expected, double tolerance) {
  using namespace simulator;
  for (const LaunchRecord& record : launch_log()) collect_parts(record);
  for (const Order order : {Order::reverse, Order::shuffled}) {
    options.order = order;
    CAPTURE(static_cast<int>(order));
    CHECK(difference(results_of<Cuda>(call), expected) == 0);
  }
  options = {};
  do_without(parts().barriers, call, expected, tolerance);
  do_without(parts().stores, call, expected, tolerance);
}

inline void check_noticed(std::vector<Part>& parts) {
  for (const Part& part : parts) CHECK_MESSAGE(part.noticed, "nobody misses ", part.name);
  parts.clear();
}

#endif

/// Checks in the simulator that each barrier that check_same came by is needed by some call.
inline void check_barriers() {
#if defined(MIXGRAD_CUDA_SIMULATED)
  check_noticed(parts().barriers);
#endif
}

/// Checks in the simulator that each line of a kernel that writes memory and that check_same came by is
/// needed by some call.
inline void check_stores() {
#if defined(MIXGRAD_CUDA_SIMULATED)
  check_noticed(parts().stores);
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
  vary(call, results, tolerance);
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
