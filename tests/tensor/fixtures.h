// What the tests of kernels share: every device and floating type, leaves made of numbers, and repeatability.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "autograd/variable.h"
#include "tensor/parallel.h"

namespace mixgrad {

/// Whether a device's threads run one after the other, checked at each access: too slow for large sizes,
/// which are left to tests/cuda and to real devices.
inline bool is_simulated(Device device) { return device != Device{} && !why_no_gpu().empty(); }

/// Calls f(device, dtype) for each device that there is, in float32 and float64.
template <class F>
void for_each_device_and_dtype(const F& f) {
  for (const Device device : available_devices()) {
    for (const DType dtype : {DType::float32, DType::float64}) {
      CAPTURE(device);
      CAPTURE(dtype);
      f(device, dtype);
    }
  }
}

/// A leaf that wants a gradient.
inline Variable leaf(const std::vector<double>& values, const Shape& shape, Device device, DType dtype) {
  return Variable(Tensor::from(values, shape, device).to(dtype), true);
}

/// Values in [-1, 1] that differ from each other, in no simple order.
inline std::vector<double> waves(int64_t count) {
  std::vector<double> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = std::sin(0.7 * static_cast<double>(i * i % 1009));
  return values;
}

/// The larger of two errors; NaN where either is, so that one that comes in stays.
inline double worse(double a, double b) { return a >= b || std::isnan(a) ? a : b; }

/// The message of the Error that f throws; "" when it throws none.
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Checks that f, which returns values, returns the same bits with 1, 2, 3 and 7 threads.
template <class F>
void check_same_with_any_threads(const F& f) {
  const int before = thread_count();
  set_thread_count(1);
  const std::vector<double> alone = f();
  for (const int threads : {2, 3, 7}) {
    CAPTURE(threads);
    set_thread_count(threads);
    CHECK(f() == alone);
  }
  set_thread_count(before);
}

}  // namespace mixgrad
