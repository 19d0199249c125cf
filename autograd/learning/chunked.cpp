#include "autograd/learning/chunked.h"

#include "autograd/ops/elementwise.h"
#include "tensor/kernels/copy.h"

namespace mixgrad {

namespace {

/// Copies between tokens of x [B, T, H, d], or [B, T, H], and contiguous [B, H, count, d].
StridedCopy layouts(const Tensor& x, int64_t count) {
  const Shape& shape = x.shape();
  const int64_t size = shape.rank() == 4 ? shape[3] : 1;
  const Shape by_head{shape[0], shape[2], count, size};
  return {.shape = by_head,
          .to_strides = {shape[2] * count * size, count * size, size, 1},
          .from_strides = {x.stride(0), x.stride(2), x.stride(1), shape.rank() == 4 ? x.stride(3) : 1}};
}

void copy(const Tensor& like, const StridedCopy& copy, const void* from, void* to) {
  dispatch(like, [&](auto device, auto type) {
    using Element = std::conditional_t<sizeof(type) == 4, uint32_t, uint64_t>;
    copy_strided(device, copy, static_cast<const Element*>(from), static_cast<Element*>(to));
  });
}

}  // namespace

Tensor tokens_by_head(const Tensor& x, int64_t start, int64_t count) {
  const Tensor tokens = x.narrow(1, start, count);
  const StridedCopy to_heads = layouts(tokens, count);
  Tensor by_head = Tensor::empty(to_heads.shape, x.dtype(), x.device());
  copy(x, to_heads, tokens.raw_data(), by_head.raw_data());
  return by_head;
}

void put_tokens(const Tensor& by_head, int64_t start, Tensor& x) {
  Tensor tokens = x.narrow(1, start, by_head.shape()[2]);
  StridedCopy from_heads = layouts(tokens, by_head.shape()[2]);
  std::swap(from_heads.to_strides, from_heads.from_strides);
  copy(x, from_heads, by_head.raw_data(), tokens.raw_data());
}

Variable repeated(const Variable& state, int64_t batch) {
  Shape shape{batch};
  for (int axis = 0; axis < state.shape().rank(); ++axis) shape.push_back(state.shape()[axis]);
  return add(Variable(Tensor::zeros(shape, state.dtype(), state.value().device())), state);
}

}  // namespace mixgrad
