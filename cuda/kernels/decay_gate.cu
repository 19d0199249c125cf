// The forgetting gate on a GPU. A row is a token's H channels gates.
//
//   kernel            a block owns                      bytes moved for each gate    FLOPs for each gate
//   forward           1024 consecutive gates            2 sizeof(T)                  some 50
//   backward_kernel   a stretch of tokens, of which a   4 sizeof(T)                  some 50
//                     thread has some of the columns
//
// Shared memory, backward: 2 sizeof(T) bytes a column (rows.cuh).
#include "tensor/kernels/decay_gate.h"

#include <cmath>

#include "cuda/device_code.h"
#include "cuda/kernels/map.cuh"
#include "cuda/kernels/rows.cuh"
#include "tensor/kernels/scalar.h"

namespace mixgrad {

template <class T>
void decay_gate_forward(Cuda device, DecayGateShape s, const T* a, const T* A_log, const T* dt_bias, T* g) {
  const int64_t columns = s.heads * s.channels;
  map(device, s.tokens * columns, [=] __device__(int64_t i) {
    const int64_t j = i % columns;
    g[i] = -std::exp(A_log[j / s.channels]) * softplus(a[i] + dt_bias[j]);
  });
}

namespace {

/// The sums of a column: of da, and of dg g.
template <class T>
__global__ void decay_gate_backward_kernel(Stretch stretch, T* partial, DecayGateShape s, const T* a,
                                           const T* A_log, const T* dt_bias, const T* g, const T* dg, T* da) {
  const int64_t columns = stretch.columns;
  T* ddt_bias = stretch.begin_sums(2, partial);
  T* dA_log = ddt_bias + columns;
  for (int64_t token = stretch.begin(); token < stretch.end(); ++token) {
    for_my_columns(columns, [=](int64_t j) {
      const int64_t i = token * columns + j;
      const T gradient = dg[i];
      const T slope = -gradient * std::exp(A_log[j / s.channels]) * sigmoid(a[i] + dt_bias[j]);
      ddt_bias[j] += slope;
      dA_log[j] += gradient * g[i];
      if (da != nullptr) da[i] = slope;
    });
  }
  stretch.end_sums(2, ddt_bias, partial);
}

}  // namespace

template <class T>
void decay_gate_backward(Cuda device, DecayGateShape s, const T* a, const T* A_log, const T* dt_bias,
                         const T* g, const T* dg, T* da, T* dA_log, T* ddt_bias) {
  Scratch<T> scratch(s.heads * s.channels, device);
  T* of_channels = scratch.data();  // of dA_log, before the sum over channels
  T* const totals[] = {ddt_bias, of_channels};
  sum_over_rows<decay_gate_backward_kernel<T>>(device, s.tokens, s.heads * s.channels, 2, totals, s, a, A_log,
                                               dt_bias, g, dg, da);
  if (dA_log == nullptr) return;
  map(device, s.heads, [=] __device__(int64_t h) {
    T sum = 0;
    for (int64_t c = 0; c < s.channels; ++c) sum += of_channels[h * s.channels + c];
    dA_log[h] = sum;
  });
}

#define INSTANTIATE(T)                                                                               \
  template void decay_gate_forward<T>(Cuda, DecayGateShape, const T*, const T*, const T*, T*);       \
  template void decay_gate_backward<T>(Cuda, DecayGateShape, const T*, const T*, const T*, const T*, \
                                       const T*, T*, T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
