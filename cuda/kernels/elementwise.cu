// Elementwise kernels on a GPU.
//
//   kernel             a block owns                 a thread owns            bytes moved          FLOPs
//   map                1024 consecutive elements    4 of them, 256 apart     each operand once    1 to 30 n
//   dropout            1024 consecutive elements    4 neighbours             2 n sizeof(T)        some 30 n
//   sum_kernel         8192 consecutive elements    32 of them, 256 apart    n sizeof(T)          n
//   reduce_repeated    256 sums                     one sum                  dy once              1 a term
//
// All are bound by memory. Neighbouring threads read neighbouring elements, and the four loads of a thread do
// not wait for each other. No shared memory but that of block_reduce.
#include "tensor/kernels/elementwise.h"

#include "cuda/kernels/axes.cuh"
#include "cuda/kernels/map.cuh"
#include "cuda/kernels/random.cuh"

namespace mixgrad {

template <class T>
void add(Cuda device, int64_t n, const T* a, const T* b, T* y) {
  map(device, n, [=] __device__(int64_t i) { y[i] = a[i] + b[i]; });
}

template <class T>
void scale(Cuda device, int64_t n, T factor, const T* x, T* y) {
  map(device, n, [=] __device__(int64_t i) { y[i] = factor * x[i]; });
}

template <class F, class T>
void unary_forward(Cuda device, int64_t n, const T* x, T* y) {
  map(device, n, [=] __device__(int64_t i) { y[i] = F::value(x[i]); });
}

template <class F, class T>
void unary_backward(Cuda device, int64_t n, const T* x, const T* dy, T* dx) {
  map(device, n, [=] __device__(int64_t i) { dx[i] = dy[i] * F::slope(x[i]); });
}

template <class T>
void swiglu_forward(Cuda device, int64_t n, const T* a, const T* b, T* y) {
  map(device, n, [=] __device__(int64_t i) { y[i] = Silu::value(a[i]) * b[i]; });
}

template <class T>
void swiglu_backward(Cuda device, int64_t n, const T* a, const T* b, const T* dy, T* da, T* db) {
  map(device, n, [=] __device__(int64_t i) {
    const T gradient = dy[i];
    if (da != nullptr) da[i] = gradient * b[i] * Silu::slope(a[i]);
    if (db != nullptr) db[i] = gradient * Silu::value(a[i]);
  });
}

namespace {

Axes axes_of(const BroadcastShape& shape) {
  Axes axes;
  for (int axis = 0; axis < shape.shape.rank(); ++axis) {
    axes.push_back(shape.shape[axis], shape.a_strides[axis], shape.b_strides[axis]);
  }
  return axes;
}

}  // namespace

template <class T>
void broadcast_add(Cuda device, const BroadcastShape& shape, const T* a, const T* b, T* y) {
  const Axes axes = axes_of(shape);
  map(device, axes.elements(),
      [=] __device__(int64_t i) { y[i] = a[axes.offset(0, i)] + b[axes.offset(1, i)]; });
}

template <class T>
void broadcast_multiply(Cuda device, const BroadcastShape& shape, const T* a, const T* b, T* y) {
  const Axes axes = axes_of(shape);
  map(device, axes.elements(),
      [=] __device__(int64_t i) { y[i] = a[axes.offset(0, i)] * b[axes.offset(1, i)]; });
}

namespace {

/// da[i] = sum of the dy that a[i] was repeated to, in the order of the repeated axes.
template <class T>
__global__ void reduce_repeated(Axes kept, Axes summed, int64_t terms, int64_t n, const T* dy, T* da) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const T* start = dy + kept.offset(0, i);
  T sum = 0;
  for (int64_t term = 0; term < terms; ++term) sum += start[summed.offset(0, term)];
  da[i] = sum;
}

}  // namespace

template <class T>
void broadcast_reduce(Cuda device, const BroadcastShape& shape, int64_t a_elements, const T* dy, T* da) {
  if (a_elements == 0) return;
  Axes kept;
  Axes summed;
  int64_t stride = 1;
  int64_t dy_strides[Shape::max_rank];
  for (int axis = shape.shape.rank() - 1; axis >= 0; --axis) {
    dy_strides[axis] = stride;
    stride *= shape.shape[axis];
  }
  for (int axis = 0; axis < shape.shape.rank(); ++axis) {
    (shape.a_strides[axis] == 0 ? summed : kept).push_back(shape.shape[axis], dy_strides[axis]);
  }
  launch<reduce_repeated<T>>(device, {blocks_for(a_elements, 256), 256}, kept, summed, summed.elements(),
                             a_elements, dy, da);
}

template <class T>
void sum_all(Cuda device, int64_t n, const T* x, T* y) {
  sum<T>(
      device, n, [=] __device__(int64_t i) { return x[i]; }, y);
}

template <class T>
void dropout(Cuda device, int64_t n, float rate, Generator generator, uint64_t first_block, const T* x,
             T* y) {
  const T kept = T(1) / (T(1) - T(rate));
  map(device, (n + 3) / 4, [=] __device__(int64_t quad) {
    const auto words = random_block(generator, first_block + quad);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t i = 4 * quad + j;
      if (i < n) y[i] = uniform_from_word(words[j]) > rate ? kept * x[i] : T(0);
    }
  });
}

template <class T>
void mask_rows(Cuda device, int64_t rows, int64_t columns, const int32_t* mask, const T* x, T* y) {
  map(device, rows * columns, [=] __device__(int64_t i) { y[i] = mask[i / columns] != 0 ? x[i] : T(0); });
}

#define INSTANTIATE_UNARY(F, T)                                   \
  template void unary_forward<F, T>(Cuda, int64_t, const T*, T*); \
  template void unary_backward<F, T>(Cuda, int64_t, const T*, const T*, T*);
#define INSTANTIATE(T)                                                                      \
  template void add<T>(Cuda, int64_t, const T*, const T*, T*);                              \
  template void scale<T>(Cuda, int64_t, T, const T*, T*);                                   \
  template void swiglu_forward<T>(Cuda, int64_t, const T*, const T*, T*);                   \
  template void swiglu_backward<T>(Cuda, int64_t, const T*, const T*, const T*, T*, T*);    \
  template void broadcast_add<T>(Cuda, const BroadcastShape&, const T*, const T*, T*);      \
  template void broadcast_multiply<T>(Cuda, const BroadcastShape&, const T*, const T*, T*); \
  template void broadcast_reduce<T>(Cuda, const BroadcastShape&, int64_t, const T*, T*);    \
  template void sum_all<T>(Cuda, int64_t, const T*, T*);                                    \
  template void dropout<T>(Cuda, int64_t, float, Generator, uint64_t, const T*, T*);        \
  template void mask_rows<T>(Cuda, int64_t, int64_t, const int32_t*, const T*, T*);         \
  INSTANTIATE_UNARY(Sigmoid, T)                                                             \
  INSTANTIATE_UNARY(LogSigmoid, T)                                                          \
  INSTANTIATE_UNARY(Softplus, T)                                                            \
  INSTANTIATE_UNARY(Silu, T)                                                                \
  INSTANTIATE_UNARY(GeluErf, T)                                                             \
  INSTANTIATE_UNARY(GeluTanh, T)                                                            \
  INSTANTIATE_UNARY(GeluTanhSlope, T)                                                       \
  INSTANTIATE_UNARY(Exp, T)                                                                 \
  INSTANTIATE_UNARY(Reciprocal, T)                                                          \
  INSTANTIATE_UNARY(EluPlusOne, T)
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
