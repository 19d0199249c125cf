// Normalisation along the last axis on a GPU. Where `mean` is null, RMS norm is meant, as in
// tensor/cpu/norm.cpp.
//
// Forward, a block owns one row; backward, it owns a stretch of rows, one after the other, so that the
// gradients of weight and bias need at most 512 partial sums. A thread owns the columns threadIdx.x,
// threadIdx.x + blockDim.x, ... of each row, and, backward, the sums over the stretch in those columns: they
// lie in shared memory where they fit there, 2 sizeof(T) bytes a column (1 without bias), else in the partial
// sums themselves. What a row is read for a second time comes out of the caches.
//
//   kernel                     bytes moved for each element    FLOPs for each element
//   norm_forward               2 sizeof(T)                     8, half of them in double
//   norm_backward              3 sizeof(T)                     13
//   gated_forward              3 sizeof(T)                     some 30
//   gated_backward             5 sizeof(T)                     some 50
//   l2_forward, l2_backward    2 and 3 sizeof(T)               3 and 8
#include "tensor/kernels/norm.h"

#include "cuda/device_code.h"
#include "cuda/kernels/rows.cuh"

namespace mixgrad {

namespace {

/// 1 / sqrt(mean of z(j)^2 + eps)
template <class T, class Z>
__device__ T inverse_deviation_of(int64_t columns, double eps, const Z& z) {
  const double squares = block_sum<double>(columns, [&](int64_t j) {
    const double value = z(j);
    return value * value;
  });
  return static_cast<T>(1 / std::sqrt(squares / static_cast<double>(columns) + eps));
}

template <class T>
__global__ void norm_forward_kernel(int64_t columns, double eps, const T* x, const T* weight, const T* bias,
                                    T* y, T* mean, T* inverse_deviation) {
  const int64_t row = blockIdx.x;
  const T* in = x + row * columns;
  T* out = y + row * columns;
  T centre = 0;
  if (mean != nullptr) {
    // Added up from the first entry, so that the mean of a constant row is exactly its value.
    const double first = columns > 0 ? in[0] : 0;
    const double rest = block_sum<double>(columns, [=](int64_t j) { return in[j] - first; });
    centre = static_cast<T>(first + rest / static_cast<double>(columns));
    __syncthreads();  // block_sum's memory is used again
  }
  const T factor =
      inverse_deviation_of<T>(columns, eps, [=](int64_t j) { return double(in[j]) - double(centre); });
  if (threadIdx.x == 0) {
    if (mean != nullptr) mean[row] = centre;
    inverse_deviation[row] = factor;
  }
  for_my_columns(columns, [=](int64_t j) {
    T value = (in[j] - centre) * factor;
    if (weight != nullptr) value *= weight[j];
    if (bias != nullptr) value += bias[j];
    out[j] = value;
  });
}

template <class T>
void norm_forward(const Cuda& device, int64_t rows, int64_t columns, double eps, const T* x, const T* weight,
                  const T* bias, T* y, T* mean, T* inverse_deviation) {
  if (rows == 0) return;
  launch<norm_forward_kernel<T>>(device, {blocks_for(rows, 1), threads_for_row(columns)}, columns, eps, x,
                                 weight, bias, y, mean, inverse_deviation);
}

template <class T>
__global__ void norm_backward_kernel(Stretch stretch, T* partial, const T* x, const T* weight, const T* mean,
                                     const T* inverse_deviation, const T* dy, T* dx) {
  const int64_t columns = stretch.columns;
  T* dweight = stretch.begin_sums(2, partial);
  T* dbias = dweight + columns;
  for (int64_t row = stretch.begin(); row < stretch.end(); ++row) {
    const T* in = x + row * columns;
    const T* gradient = dy + row * columns;
    const T centre = mean != nullptr ? mean[row] : T(0);
    const T factor = inverse_deviation[row];
    Pair<T> sums{0, 0};  // of g and g n
    for_my_columns(columns, [&](int64_t j) {
      const T normalised = (in[j] - centre) * factor;
      const T weighted = weight != nullptr ? gradient[j] * weight[j] : gradient[j];
      dweight[j] += gradient[j] * normalised;
      if (mean != nullptr) dbias[j] += gradient[j];  // rms norm has no bias
      sums = Sum::join(sums, Pair<T>{weighted, weighted * normalised});
    });
    if (dx == nullptr) continue;
    sums = block_reduce<Sum>(sums, Pair<T>{0, 0});
    const T mean_g = mean != nullptr ? sums.first / static_cast<T>(columns) : T(0);
    const T mean_gn = sums.second / static_cast<T>(columns);
    for_my_columns(columns, [=](int64_t j) {
      const T normalised = (in[j] - centre) * factor;
      const T weighted = weight != nullptr ? gradient[j] * weight[j] : gradient[j];
      dx[row * columns + j] = (weighted - mean_g - normalised * mean_gn) * factor;
    });
    __syncthreads();  // the next row uses block_reduce's memory again
  }
  stretch.end_sums(2, dweight, partial);
}

template <class T>
void norm_backward(const Cuda& device, int64_t rows, int64_t columns, const T* x, const T* weight,
                   const T* mean, const T* inverse_deviation, const T* dy, T* dx, T* dweight, T* dbias) {
  T* const totals[] = {dweight, dbias};
  sum_over_rows<norm_backward_kernel<T>>(device, rows, columns, 2, totals, x, weight, mean, inverse_deviation,
                                         dy, dx);
}

}  // namespace

template <class T>
void layer_norm_forward(Cuda device, int64_t rows, int64_t columns, double eps, const T* x, const T* weight,
                        const T* bias, T* y, T* mean, T* inverse_deviation) {
  norm_forward(device, rows, columns, eps, x, weight, bias, y, mean, inverse_deviation);
}

template <class T>
void layer_norm_backward(Cuda device, int64_t rows, int64_t columns, const T* x, const T* weight,
                         const T* mean, const T* inverse_deviation, const T* dy, T* dx, T* dweight,
                         T* dbias) {
  norm_backward(device, rows, columns, x, weight, mean, inverse_deviation, dy, dx, dweight, dbias);
}

template <class T>
void rms_norm_forward(Cuda device, int64_t rows, int64_t columns, double eps, const T* x, const T* weight,
                      T* y, T* inverse_deviation) {
  norm_forward<T>(device, rows, columns, eps, x, weight, nullptr, y, nullptr, inverse_deviation);
}

template <class T>
void rms_norm_backward(Cuda device, int64_t rows, int64_t columns, const T* x, const T* weight,
                       const T* inverse_deviation, const T* dy, T* dx, T* dweight) {
  norm_backward<T>(device, rows, columns, x, weight, nullptr, inverse_deviation, dy, dx, dweight, nullptr);
}

namespace {

template <class F, class T>
__global__ void gated_forward_kernel(int64_t columns, GateOrder order, double eps, const T* x, const T* gate,
                                     const T* weight, T* y, T* inverse_deviation) {
  const int64_t row = blockIdx.x;
  const T* in = x + row * columns;
  const T* gates = gate + row * columns;
  const bool gate_first = order == GateOrder::gate_first;
  const T factor = inverse_deviation_of<T>(
      columns, eps, [=](int64_t j) { return gate_first ? in[j] * F::value(gates[j]) : in[j]; });
  if (threadIdx.x == 0) inverse_deviation[row] = factor;
  for_my_columns(columns, [=](int64_t j) {
    const T value = in[j] * F::value(gates[j]) * factor;
    y[row * columns + j] = weight != nullptr ? value * weight[j] : value;
  });
}

template <class F, class T>
__global__ void gated_backward_kernel(Stretch stretch, T* partial, GateOrder order, const T* x, const T* gate,
                                      const T* weight, const T* inverse_deviation, const T* dy, T* dx,
                                      T* dgate) {
  const int64_t columns = stretch.columns;
  const bool gate_first = order == GateOrder::gate_first;
  T* dweight = stretch.begin_sums(1, partial);
  for (int64_t row = stretch.begin(); row < stretch.end(); ++row) {
    const T* in = x + row * columns;
    const T* gates = gate + row * columns;
    const T* gradient = dy + row * columns;
    const T factor = inverse_deviation[row];
    // In both orders y = weight f(gate) x factor, so dweight is the same; n and g are those of the formula.
    T sum = 0;  // of g n
    for_my_columns(columns, [&](int64_t j) {
      const T term = gradient[j] * (in[j] * factor * F::value(gates[j]));
      dweight[j] += term;
      sum += weight != nullptr ? term * weight[j] : term;
    });
    const T mean_gn = block_reduce<Sum>(sum, T(0)) / static_cast<T>(columns);
    for_my_columns(columns, [=](int64_t j) {
      const T activated = F::value(gates[j]);
      const T slope = F::slope(gates[j]);
      const T weighted = weight != nullptr ? gradient[j] * weight[j] : gradient[j];
      const T normalised = in[j] * factor;
      const int64_t at = row * columns + j;
      if (gate_first) {
        const T dz = (weighted - normalised * activated * mean_gn) * factor;
        dx[at] = dz * activated;
        dgate[at] = dz * in[j] * slope;
      } else {
        dx[at] = (weighted * activated - normalised * mean_gn) * factor;
        dgate[at] = weighted * normalised * slope;
      }
    });
    __syncthreads();  // the next row uses block_reduce's memory again
  }
  stretch.end_sums(1, dweight, partial);
}

}  // namespace

template <class F, class T>
void gated_rms_norm_forward(Cuda device, int64_t rows, int64_t columns, GateOrder order, double eps,
                            const T* x, const T* gate, const T* weight, T* y, T* inverse_deviation) {
  if (rows == 0) return;
  launch<gated_forward_kernel<F, T>>(device, {blocks_for(rows, 1), threads_for_row(columns)}, columns, order,
                                     eps, x, gate, weight, y, inverse_deviation);
}

template <class F, class T>
void gated_rms_norm_backward(Cuda device, int64_t rows, int64_t columns, GateOrder order, const T* x,
                             const T* gate, const T* weight, const T* inverse_deviation, const T* dy, T* dx,
                             T* dgate, T* dweight) {
  T* const totals[] = {dweight};
  sum_over_rows<gated_backward_kernel<F, T>>(device, rows, columns, 1, totals, order, x, gate, weight,
                                             inverse_deviation, dy, dx, dgate);
}

namespace {

template <class T>
__global__ void l2_forward_kernel(int64_t columns, double eps, const T* x, T* y, T* inverse_length) {
  const int64_t row = blockIdx.x;
  const T* in = x + row * columns;
  const double squares = block_sum<double>(columns, [=](int64_t j) {
    const double value = in[j];
    return value * value;
  });
  const T factor = static_cast<T>(1 / std::sqrt(squares + eps));
  if (threadIdx.x == 0) inverse_length[row] = factor;
  for_my_columns(columns, [=](int64_t j) { y[row * columns + j] = in[j] * factor; });
}

template <class T>
__global__ void l2_backward_kernel(int64_t columns, const T* x, const T* inverse_length, const T* dy, T* dx) {
  const int64_t row = blockIdx.x;
  const T* in = x + row * columns;
  const T* gradient = dy + row * columns;
  const T factor = inverse_length[row];
  // In this order nothing overflows for large x.
  const T projection = block_sum<T>(columns, [=](int64_t j) { return gradient[j] * (in[j] * factor); });
  for_my_columns(columns, [=](int64_t j) {
    dx[row * columns + j] = (gradient[j] - in[j] * factor * projection) * factor;
  });
}

}  // namespace

template <class T>
void l2_normalize_forward(Cuda device, int64_t rows, int64_t columns, double eps, const T* x, T* y,
                          T* inverse_length) {
  if (rows == 0) return;
  launch<l2_forward_kernel<T>>(device, {blocks_for(rows, 1), threads_for_row(columns)}, columns, eps, x, y,
                               inverse_length);
}

template <class T>
void l2_normalize_backward(Cuda device, int64_t rows, int64_t columns, const T* x, const T* inverse_length,
                           const T* dy, T* dx) {
  if (rows == 0) return;
  launch<l2_backward_kernel<T>>(device, {blocks_for(rows, 1), threads_for_row(columns)}, columns, x,
                                inverse_length, dy, dx);
}

#define INSTANTIATE_GATED(F, T)                                                                             \
  template void gated_rms_norm_forward<F, T>(Cuda, int64_t, int64_t, GateOrder, double, const T*, const T*, \
                                             const T*, T*, T*);                                             \
  template void gated_rms_norm_backward<F, T>(Cuda, int64_t, int64_t, GateOrder, const T*, const T*,        \
                                              const T*, const T*, const T*, T*, T*, T*);
#define INSTANTIATE(T)                                                                                      \
  template void layer_norm_forward<T>(Cuda, int64_t, int64_t, double, const T*, const T*, const T*, T*, T*, \
                                      T*);                                                                  \
  template void layer_norm_backward<T>(Cuda, int64_t, int64_t, const T*, const T*, const T*, const T*,      \
                                       const T*, T*, T*, T*);                                               \
  template void rms_norm_forward<T>(Cuda, int64_t, int64_t, double, const T*, const T*, T*, T*);            \
  template void rms_norm_backward<T>(Cuda, int64_t, int64_t, const T*, const T*, const T*, const T*, T*,    \
                                     T*);                                                                   \
  INSTANTIATE_GATED(Silu, T)                                                                                \
  INSTANTIATE_GATED(Sigmoid, T)                                                                             \
  template void l2_normalize_forward<T>(Cuda, int64_t, int64_t, double, const T*, T*, T*);                  \
  template void l2_normalize_backward<T>(Cuda, int64_t, int64_t, const T*, const T*, const T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
