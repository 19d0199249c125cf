// The kernels of an optimiser step on the CPU.
#include "tensor/kernels/optimizer.h"

#include <cmath>
#include <vector>

#include "tensor/cpu/reduce.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {
constexpr int64_t block_elements = 16384;
}

template <class T>
void adamw(Cpu, int64_t n, const AdamWStep& s, const T* g, T* p, T* m, T* v) {
  const T kept = static_cast<T>(1 - s.learning_rate * s.weight_decay);
  const T b1 = static_cast<T>(s.beta1), one_minus_b1 = static_cast<T>(1 - s.beta1);
  const T b2 = static_cast<T>(s.beta2), one_minus_b2 = static_cast<T>(1 - s.beta2);
  const T rate = static_cast<T>(s.learning_rate / (1 - std::pow(s.beta1, s.step)));
  const T root_correction = static_cast<T>(1 / std::sqrt(1 - std::pow(s.beta2, s.step)));
  const T epsilon = static_cast<T>(s.epsilon);
  const T scale = static_cast<T>(s.gradient_scale);
  parallel_blocks(n, block_elements, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T gradient = scale * g[i];
      m[i] = b1 * m[i] + one_minus_b1 * gradient;
      v[i] = b2 * v[i] + one_minus_b2 * gradient * gradient;
      p[i] = kept * p[i] - rate * m[i] / (std::sqrt(v[i]) * root_correction + epsilon);
    }
  });
}

template <class T>
double sum_of_squares(Cpu, int64_t n, const T* x) {
  std::vector<double> partial((n + block_elements - 1) / block_elements);
  parallel_blocks(n, block_elements, [&](int64_t begin, int64_t end) {
    partial[begin / block_elements] = row_sum<double>(end - begin, [=](int64_t i) {
      const double value = x[begin + i];
      return value * value;
    });
  });
  double total = 0;
  for (const double sum : partial) total += sum;
  return total;
}

#define INSTANTIATE(T)                                                          \
  template void adamw<T>(Cpu, int64_t, const AdamWStep&, const T*, T*, T*, T*); \
  template double sum_of_squares<T>(Cpu, int64_t, const T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
