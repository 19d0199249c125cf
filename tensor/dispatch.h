// From a tensor's device and element type to the kernel that computes it.
#pragma once

#include "tensor/tensor.h"

namespace mixgrad {

/// Calls f with the tag of a device.
template <class F>
void with_device([[maybe_unused]] Device device, const F& f) {
#if defined(MIXGRAD_CUDA)
  if (device.kind == Device::Kind::cuda) return f(Cuda{device.index});
#endif
  f(Cpu{});
}

/// Calls f(device tag, T{}) for the device and floating type of x, so that f can call a kernel's overload:
///
///   dispatch(x, [&](auto device, auto type) {
///     using T = decltype(type);
///     softmax_forward(device, rows, x.data<T>(), y.data<T>());
///   });
template <class F>
void dispatch(const Tensor& x, const F& f) {
  with_device(x.device(), [&](auto device) {
    switch (x.dtype()) {
      case DType::float32:
        return f(device, float{});
      case DType::float64:
        return f(device, double{});
      default:
        throw Error(str("[dispatch] no kernels for element type ", x.dtype(), "; allowed: float32, float64"));
    }
  });
}

}  // namespace mixgrad
