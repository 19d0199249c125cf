// Short causal convolution on a GPU. Neighbouring threads have neighbouring channels, so that every access
// but those of the few weights is to neighbouring memory; the W rows that a thread reads stay in the caches
// from one token to the next.
//
//   kernel           a block owns                     numbers moved, an entry of x    FLOPs, an entry of x
//   forward          1024 neighbouring entries of y   2                               2 W, with silu 25 more
//   activations      1024 neighbouring entries of e   3                               2 W + 30
//   gradients of x   1024 neighbouring entries of dx  2                               2 W
//   weight_sums      a stretch of tokens, of which a  2                               2 W + 1
//                    thread has some of the channels
//
// Shared memory of weight_sums: (W + 1) sizeof(T) bytes a channel (rows.cuh).
#include "tensor/kernels/conv.h"

#include <vector>

#include "cuda/device_code.h"
#include "cuda/kernels/map.cuh"
#include "cuda/kernels/rows.cuh"
#include "tensor/kernels/scalar.h"

namespace mixgrad {

namespace {

/// Channel c of token t of a sequence, t >= -(W - 1): before token 0 from the initial state, 0 where that is
/// null.
template <class T>
__device__ T value_at(const ConvShape& s, const T* x, const T* state, int64_t b, int64_t t, int64_t c) {
  if (t >= 0) return x[(b * s.length + t) * s.channels + c];
  return state == nullptr ? T(0) : state[(b * (s.taps - 1) + t + s.taps - 1) * s.channels + c];
}

__device__ bool begins_document(const ConvShape& s, const int32_t* documents, int64_t b, int64_t t) {
  return documents != nullptr && t >= 0 && documents[b * s.length + t] != 0;
}

/// The first tap of token t that sees a token of its own document, or the initial state.
__device__ int64_t first_tap(const ConvShape& s, const int32_t* documents, int64_t b, int64_t t) {
  int64_t tap = s.taps - 1;
  while (tap > 0 && !begins_document(s, documents, b, t - (s.taps - 1) + tap)) --tap;
  return tap;
}

/// The sum of token t, before f.
template <class T>
__device__ T convolve(const ConvShape& s, const T* x, const T* weight, const T* bias, const T* state,
                      const int32_t* documents, int64_t b, int64_t t, int64_t c) {
  T sum = bias != nullptr ? bias[c] : T(0);
  for (int64_t i = first_tap(s, documents, b, t); i < s.taps; ++i) {
    sum += weight[c * s.taps + i] * value_at(s, x, state, b, t - (s.taps - 1) + i, c);
  }
  return sum;
}

/// Where entry i of an array [B, tokens, D] is.
struct Entry {
  int64_t b, t, c;

  __device__ Entry(const ConvShape& s, int64_t tokens, int64_t i)
      : b(i / s.channels / tokens), t(i / s.channels % tokens), c(i % s.channels) {}
};

}  // namespace

template <class T>
void causal_conv1d_forward(Cuda device, ConvShape s, const T* x, const T* weight, const T* bias,
                           const T* initial_state, T* y, T* final_state, const int32_t* documents) {
  map(device, s.batch * s.length * s.channels, [=] __device__(int64_t i) {
    const Entry at(s, s.length, i);
    const T sum = convolve(s, x, weight, bias, initial_state, documents, at.b, at.t, at.c);
    y[i] = s.silu ? Silu::value(sum) : sum;
  });
  if (final_state == nullptr) return;
  map(device, s.batch * (s.taps - 1) * s.channels, [=] __device__(int64_t i) {
    const Entry at(s, s.taps - 1, i);
    const bool seen = at.t + 1 >= first_tap(s, documents, at.b, s.length - 1);  // by the newest token's taps
    final_state[i] = seen ? value_at(s, x, initial_state, at.b, s.length - (s.taps - 1) + at.t, at.c) : T(0);
  });
}

namespace {

/// The sums of a channel: of e[t] x[t - (W - 1) + i] for each tap i, and of e.
template <class T>
__global__ void weight_sums(Stretch stretch, T* partial, ConvShape s, const T* x, const T* initial_state,
                            const T* e, const int32_t* documents) {
  const int kinds = static_cast<int>(s.taps) + 1;
  T* sums = stretch.begin_sums(kinds, partial);
  for (int64_t row = stretch.begin(); row < stretch.end(); ++row) {
    const int64_t b = row / s.length;
    const int64_t t = row % s.length;
    const int64_t first = first_tap(s, documents, b, t);
    for_my_columns(s.channels, [=](int64_t c) {
      const T gradient = e[row * s.channels + c];
      for (int64_t i = first; i < s.taps; ++i) {
        sums[i * s.channels + c] += gradient * value_at(s, x, initial_state, b, t - (s.taps - 1) + i, c);
      }
      sums[s.taps * s.channels + c] += gradient;
    });
  }
  stretch.end_sums(kinds, sums, partial);
}

}  // namespace

template <class T>
void causal_conv1d_backward(Cuda device, ConvShape s, const T* x, const T* weight, const T* bias,
                            const T* initial_state, const T* dy, const T* dfinal_state, T* dx, T* dweight,
                            T* dbias, T* dinitial_state, const int32_t* documents) {
  const int64_t entries = s.batch * s.length * s.channels;
  Scratch<T> e_scratch(entries, device);
  Scratch<T> by_tap_scratch(s.taps * s.channels, device);
  T* e = e_scratch.data();            // dy f'(the sums)
  T* by_tap = by_tap_scratch.data();  // dweight as [W, D]
  map(device, entries, [=] __device__(int64_t i) {
    const Entry at(s, s.length, i);
    const T slope =
        s.silu ? Silu::slope(convolve(s, x, weight, bias, initial_state, documents, at.b, at.t, at.c)) : T(1);
    e[i] = dy != nullptr ? dy[i] * slope : T(0);
  });

  const int64_t states = dinitial_state != nullptr ? s.taps - 1 : 0;
  map(device, s.batch * (states + s.length) * s.channels, [=] __device__(int64_t i) {
    const Entry at(s, states + s.length, i);
    const int64_t t = at.t - states;
    T sum = 0;
    for (int64_t tap = s.taps - 1; tap >= 0; --tap) {
      const int64_t later = t + s.taps - 1 - tap;  // the token that reads this one through the tap
      if (later >= s.length || (later > t && begins_document(s, documents, at.b, later))) break;
      if (later >= 0) {
        sum += weight[at.c * s.taps + tap] * e[(at.b * s.length + later) * s.channels + at.c];
      }
    }
    const int64_t place = t - (s.length - (s.taps - 1));  // in the final state
    if (dfinal_state != nullptr && place >= 0 && place + 1 >= first_tap(s, documents, at.b, s.length - 1)) {
      sum += dfinal_state[(at.b * (s.taps - 1) + place) * s.channels + at.c];
    }
    if (t >= 0)
      dx[(at.b * s.length + t) * s.channels + at.c] = sum;
    else
      dinitial_state[(at.b * states + at.t) * s.channels + at.c] = sum;
  });

  std::vector<T*> totals(s.taps + 1, nullptr);
  if (dweight != nullptr) {
    for (int64_t i = 0; i < s.taps; ++i) totals[i] = by_tap + i * s.channels;
  }
  totals[s.taps] = dbias;
  sum_over_rows<weight_sums<T>>(device, s.batch * s.length, s.channels, static_cast<int>(s.taps) + 1,
                                totals.data(), s, x, initial_state, static_cast<const T*>(e), documents);
  if (dweight == nullptr) return;
  map(device, s.taps * s.channels,
      [=] __device__(int64_t i) { dweight[i] = by_tap[i % s.taps * s.channels + i / s.taps]; });
}

#define INSTANTIATE(T)                                                                                       \
  template void causal_conv1d_forward<T>(Cuda, ConvShape, const T*, const T*, const T*, const T*, T*, T*,    \
                                         const int32_t*);                                                    \
  template void causal_conv1d_backward<T>(Cuda, ConvShape, const T*, const T*, const T*, const T*, const T*, \
                                          const T*, T*, T*, T*, T*, const int32_t*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
