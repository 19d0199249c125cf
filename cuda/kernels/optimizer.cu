// The kernels of an optimiser step on a GPU.
//
//   kernel            a block owns         a thread owns             bytes moved      FLOPs
//   adamw             1024 neighbours      4 of them, 256 apart      7 n sizeof(T)    15 n
//   sum_of_squares    8192 neighbours      32 of them, 256 apart     n sizeof(T)      2 n, in double
//
// Both are bound by memory.
#include "tensor/kernels/optimizer.h"

#include <cmath>

#include "cuda/device_code.h"
#include "cuda/kernels/map.cuh"

namespace mixgrad {

template <class T>
void adamw(Cuda device, int64_t n, const AdamWStep& s, const T* g, T* p, T* m, T* v) {
  const T kept = static_cast<T>(1 - s.learning_rate * s.weight_decay);
  const T b1 = static_cast<T>(s.beta1), one_minus_b1 = static_cast<T>(1 - s.beta1);
  const T b2 = static_cast<T>(s.beta2), one_minus_b2 = static_cast<T>(1 - s.beta2);
  const T rate = static_cast<T>(s.learning_rate / (1 - std::pow(s.beta1, s.step)));
  const T root_correction = static_cast<T>(1 / std::sqrt(1 - std::pow(s.beta2, s.step)));
  const T epsilon = static_cast<T>(s.epsilon);
  const T scale = static_cast<T>(s.gradient_scale);
  map(device, n, [=] __device__(int64_t i) {
    const T gradient = scale * g[i];
    const T first = b1 * m[i] + one_minus_b1 * gradient;
    const T second = b2 * v[i] + one_minus_b2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    p[i] = kept * p[i] - rate * first / (std::sqrt(second) * root_correction + epsilon);
  });
}

template <class T>
double sum_of_squares(Cuda device, int64_t n, const T* x) {
  Scratch<double> total(1, device);
  const auto square = [=] __device__(int64_t i) { return static_cast<double>(x[i]) * x[i]; };
  sum(device, n, square, total.data());
  double result = 0;
  cuda::copy_to_host(device, &result, total.data(), sizeof(result));
  return result;
}

#define INSTANTIATE(T)                                                           \
  template void adamw<T>(Cuda, int64_t, const AdamWStep&, const T*, T*, T*, T*); \
  template double sum_of_squares<T>(Cuda, int64_t, const T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
