// From a tensor's device and element type to the kernel that computes it.
#pragma once

#include "tensor/tensor.h"

namespace mixgrad {

/// Calls f(device tag, T{}) for the device and floating type of x, so that f can call a kernel's overload:
///
///   dispatch(x, [&](auto device, auto type) {
///     using T = decltype(type);
///     softmax_forward(device, rows, x.data<T>(), y.data<T>());
///   });
template <class F>
void dispatch(const Tensor& x, const F& f) {
  switch (x.dtype()) {
    case DType::float32:
      return f(Cpu{}, float{});
    case DType::float64:
      return f(Cpu{}, double{});
    default:
      throw Error(str("[dispatch] no kernels for element type ", x.dtype(), "; allowed: float32, float64"));
  }
}

}  // namespace mixgrad
