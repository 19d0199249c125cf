// What a GPU can do at most, by the kernels of this program.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tensor/dispatch.h"
#include "tensor/kernels/elementwise.h"
#include "tensor/kernels/gemm.h"
#include "tensor/tensor.h"
#include "train/bench/figure.h"

namespace mixgrad {

namespace {

/// Values that differ from each other: a GPU multiplies zeros with less power, so faster.
Tensor values(int64_t count, Device device) {
  std::vector<float> all(count);
  for (int64_t i = 0; i < count; ++i) all[i] = static_cast<float>(i * 7919 % 65521) / 65521 - 0.5F;
  return Tensor::from(all, {count}, device);
}

/// A call, and how large it is.
struct Sized {
  int64_t size;
  std::function<void()> call;
};

/// Of the calls that make(size) makes for `least` and twice, four times ... as much, up to `most`: the first
/// that takes a millisecond, else the last.
template <class Make>
Sized large_enough(int64_t least, int64_t most, Device device, const Make& make) {
  for (int64_t size = least;; size *= 2) {
    const std::function<void()> call = make(size);
    call();
    const double start = clock_seconds(device);
    call();
    if (size >= most || clock_seconds(device) - start >= 1e-3) return {size, call};
  }
}

double least(const std::vector<double>& seconds) { return *std::min_element(seconds.begin(), seconds.end()); }

double measure_products(Device device, double seconds) {
  const Sized product = large_enough(64, 8192, device, [device](int64_t n) {
    return [n, operand = values(n * n, device),
            result = Tensor::empty({n * n}, DType::float32, device)]() mutable {
      dispatch(operand, [&](auto tag, auto type) {
        using T = decltype(type);
        gemm(tag, {.m = n, .n = n, .k = n}, T(1), operand.data<T>(), operand.data<T>(), T(0),
             result.data<T>());
      });
    };
  });
  const double flops = 2 * std::pow(product.size, 3);
  return flops / least(time_calls(seconds, device, product.call));
}

MemoryLevel measure_memory(Device device, double seconds) {
  constexpr auto float_bytes = static_cast<int64_t>(sizeof(float));
  const Sized read = large_enough(1 << 12, 1 << 28, device, [device](int64_t count) {
    return [count, from = values(count, device), sum = Tensor::empty({1}, DType::float32, device)]() mutable {
      dispatch(from, [&](auto tag, auto type) {
        using T = decltype(type);
        sum_all(tag, count, from.data<T>(), sum.data<T>());
      });
    };
  });
  const int64_t bytes = read.size * float_bytes;
  const Tensor from = values(read.size, device);
  Tensor to = Tensor::empty({read.size}, DType::float32, device);
  const auto copy = [&] { copy_bytes(device, to.data<float>(), device, from.data<float>(), bytes); };
  return {.name = "memory",
          .bytes = 2 * bytes,
          .read_bytes_s = static_cast<double>(bytes) / least(time_calls(seconds, device, read.call)),
          .copy_bytes_s = 2 * static_cast<double>(bytes) / least(time_calls(seconds, device, copy))};
}

}  // namespace

Peaks measure_device_peaks(Device gpu, double seconds) {
  const bool rounded = matrix_precision() == MatrixPrecision::bfloat16;
  return {.threads = 1,
          .flops_s = measure_products(gpu, seconds),
          .levels = {measure_memory(gpu, seconds)},
          .arithmetic = rounded ? "products of bf16" : "products of fp32"};
}

}  // namespace mixgrad
