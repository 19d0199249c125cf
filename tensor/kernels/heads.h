// How kernels address operands that are split into heads, [B, T, H, d], without copies.
#pragma once

#include <cstdint>

#include "tensor/random.h"
#include "tensor/tensor.h"

namespace mixgrad {

/// [B, T, H, d] with free distances between batch entries and between tokens; the heads of a token lie side
/// by side, d elements each. That covers the first tokens of a KV cache and a part of a fused projection.
template <class T>
struct Heads {
  T* data = nullptr;
  int64_t batch_stride = 0;  // in elements, like token_stride
  int64_t token_stride = 0;
  int64_t head_size = 0;

  /// The d elements of one head of one token; those of the next token are token_stride further.
  MIXGRAD_HOST_DEVICE T* at(int64_t batch, int64_t token, int64_t head) const {
    return data + batch * batch_stride + token * token_stride + head * head_size;
  }
  operator Heads<const T>() const { return {data, batch_stride, token_stride, head_size}; }
};

/// The values of x [B, T, H, d], to read or to write. Throws Error when a token's heads do not lie side by
/// side.
template <class T>
Heads<const T> heads(const Tensor& x) {
  check(x.shape().rank() == 4 && x.stride(3) == 1 && x.stride(2) == x.shape()[3],
        "[heads] a tensor of shape ", x.shape(),
        "; allowed: [B, T, H, d] with the heads of a token side by side");
  return {x.strided_data<T>(), x.stride(0), x.stride(1), x.shape()[3]};
}
template <class T>
Heads<T> heads(Tensor& x) {
  const Heads<const T> values = heads<T>(static_cast<const Tensor&>(x));
  return {const_cast<T*>(values.data), values.batch_stride, values.token_stride, values.head_size};
}

}  // namespace mixgrad
