// Rotary position embedding on a GPU: a table of cosines and sines, then the rotation.
//
//   kernel        a thread owns                   bytes moved              FLOPs
//   fill_table    4 pairs of a token and a j      T d sizeof(T)            some 100 each, in double
//   rotate        4 pairs (x_j, x_{j + d/2})      2 B T H d sizeof(T)      6 a pair
//
// The table, which all heads and batch entries share, comes out of the L2 cache.
//
// No shared memory.
#include "tensor/kernels/rope.h"

#include <cmath>

#include "cuda/device_code.h"
#include "cuda/kernels/map.cuh"

namespace mixgrad {

namespace {

/// sign: 1 forward, -1 backward.
template <class T>
void rotate(const Cuda& device, const RopeShape& s, double sign, const int64_t* positions, Heads<const T> x,
            Heads<T> y) {
  const int64_t half = s.head_size / 2;
  Scratch<T> scratch(s.length * s.head_size, device);
  T* table = scratch.data();  // [T, d]: for each token the cosines, then the sines
  map(device, s.length * half, [=] __device__(int64_t i) {
    const int64_t t = i / half;
    const int64_t j = i % half;
    const double frequency =
        std::pow(s.theta, -2 * static_cast<double>(j) / static_cast<double>(s.head_size));
    const double angle = sign * static_cast<double>(positions[t]) * frequency;
    table[t * s.head_size + j] = static_cast<T>(std::cos(angle));
    table[t * s.head_size + half + j] = static_cast<T>(std::sin(angle));
  });
  map(device, s.batch * s.length * s.heads * half, [=] __device__(int64_t i) {
    const int64_t j = i % half;
    const int64_t head = i / half % s.heads;
    const int64_t token = i / half / s.heads;
    const int64_t t = token % s.length;
    const T cosine = table[t * s.head_size + j];
    const T sine = table[t * s.head_size + half + j];
    const T* in = x.at(token / s.length, t, head);
    T* out = y.at(token / s.length, t, head);
    const T first = in[j];
    const T second = in[j + half];
    out[j] = first * cosine - second * sine;
    out[j + half] = second * cosine + first * sine;
  });
}

}  // namespace

template <class T>
void rope_forward(Cuda device, RopeShape shape, const int64_t* positions, Heads<const T> x, Heads<T> y) {
  rotate(device, shape, 1, positions, x, y);
}

template <class T>
void rope_backward(Cuda device, RopeShape shape, const int64_t* positions, Heads<const T> dy, Heads<T> dx) {
  rotate(device, shape, -1, positions, dy, dx);
}

#define INSTANTIATE(T)                                                                      \
  template void rope_forward<T>(Cuda, RopeShape, const int64_t*, Heads<const T>, Heads<T>); \
  template void rope_backward<T>(Cuda, RopeShape, const int64_t*, Heads<const T>, Heads<T>);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
