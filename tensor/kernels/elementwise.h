// Elementwise kernels: unary functions, SwiGLU, sums and products with broadcasting, dropout, row masks.
//
// Pointers are to contiguous arrays of n elements unless a shape says otherwise.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/device.h"
#include "tensor/kernels/scalar.h"
#include "tensor/random.h"
#include "tensor/shape.h"

namespace mixgrad {

/// y = a + b; y may be a.
template <class T>
void add(Cpu, int64_t n, const T* a, const T* b, T* y);
/// y = factor x; y may be x.
template <class T>
void scale(Cpu, int64_t n, T factor, const T* x, T* y);

/// y = F::value(x), F one of the functions of scalar.h.
template <class F, class T>
void unary_forward(Cpu, int64_t n, const T* x, T* y);
/// dx = dy F::slope(x)
template <class F, class T>
void unary_backward(Cpu, int64_t n, const T* x, const T* dy, T* dx);

/// y = silu(a) b. Shazeer: GLU variants improve transformer, 2020.
template <class T>
void swiglu_forward(Cpu, int64_t n, const T* a, const T* b, T* y);
/// da = dy b silu'(a), db = dy silu(a), with silu(a) computed again. A null gradient isn't wanted.
template <class T>
void swiglu_backward(Cpu, int64_t n, const T* a, const T* b, const T* dy, T* da, T* db);

/// Two operands and the common shape that they are repeated to: stride 0 along a repeated axis.
struct BroadcastShape {
  Shape shape;
  std::array<int64_t, Shape::max_rank> a_strides{};
  std::array<int64_t, Shape::max_rank> b_strides{};
};
/// Axes are matched from the last; sizes must agree or be 1. Throws Error that names `op`.
BroadcastShape broadcast(const char* op, const Shape& a, const Shape& b);

/// y = a + b and y = a b; y is contiguous of the common shape.
template <class T>
void broadcast_add(Cpu, const BroadcastShape& shape, const T* a, const T* b, T* y);
template <class T>
void broadcast_multiply(Cpu, const BroadcastShape& shape, const T* a, const T* b, T* y);
/// The backward of repeating a: da[i] = sum of dy over all places that a[i] was repeated to. a has
/// a_elements.
template <class T>
void broadcast_reduce(Cpu, const BroadcastShape& shape, int64_t a_elements, const T* dy, T* da);

/// Sum over all n elements, in blocks of fixed order.
template <class T>
void sum_all(Cpu, int64_t n, const T* x, T* y);

/// Inverted dropout: y = x / (1 - rate) with probability 1 - rate, else 0. Element i is decided by word i mod
/// 4 of block first_block + i / 4 of the generator, so that the backward pass, which is the same map applied
/// to dy, draws the same mask again instead of keeping it. Srivastava et al., 2014.
template <class T>
void dropout(Cpu, int64_t n, float rate, Generator generator, uint64_t first_block, const T* x, T* y);

/// y = x in rows whose mask is not 0, and 0 in the others, by selection: a NaN in a masked row does not leak.
/// x [rows, columns], mask [rows]. Its own backward.
template <class T>
void mask_rows(Cpu, int64_t rows, int64_t columns, const int32_t* mask, const T* x, T* y);

// On a GPU: cuda/kernels/elementwise.cu. All pointers are to device memory.
template <class T>
void add(Cuda, int64_t n, const T* a, const T* b, T* y);
template <class T>
void scale(Cuda, int64_t n, T factor, const T* x, T* y);
template <class F, class T>
void unary_forward(Cuda, int64_t n, const T* x, T* y);
template <class F, class T>
void unary_backward(Cuda, int64_t n, const T* x, const T* dy, T* dx);
template <class T>
void swiglu_forward(Cuda, int64_t n, const T* a, const T* b, T* y);
template <class T>
void swiglu_backward(Cuda, int64_t n, const T* a, const T* b, const T* dy, T* da, T* db);
template <class T>
void broadcast_add(Cuda, const BroadcastShape& shape, const T* a, const T* b, T* y);
template <class T>
void broadcast_multiply(Cuda, const BroadcastShape& shape, const T* a, const T* b, T* y);
template <class T>
void broadcast_reduce(Cuda, const BroadcastShape& shape, int64_t a_elements, const T* dy, T* da);
template <class T>
void sum_all(Cuda, int64_t n, const T* x, T* y);
template <class T>
void dropout(Cuda, int64_t n, float rate, Generator generator, uint64_t first_block, const T* x, T* y);
template <class T>
void mask_rows(Cuda, int64_t rows, int64_t columns, const int32_t* mask, const T* x, T* y);

}  // namespace mixgrad
