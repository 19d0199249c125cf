// Rotary position embedding on the CPU.
#include "tensor/kernels/rope.h"

#include <cmath>

#include "tensor/allocator.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

enum class Direction { forward, backward };

/// table[t] holds head_size / 2 cosines, then as many sines: every head and batch entry shares them.
template <class T>
void fill_table(const RopeShape& s, Direction direction, const int64_t* positions, T* table) {
  const int64_t half = s.head_size / 2;
  const double sign = direction == Direction::forward ? 1 : -1;
  Scratch<double> frequency_scratch(half);
  double* frequency = frequency_scratch.data();
  for (int64_t j = 0; j < half; ++j) {
    frequency[j] = std::pow(s.theta, -2 * static_cast<double>(j) / static_cast<double>(s.head_size));
  }
  parallel_blocks(s.length, 16, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* cosine = table + t * s.head_size;
      T* sine = cosine + half;
      for (int64_t j = 0; j < half; ++j) {
        const double angle = sign * static_cast<double>(positions[t]) * frequency[j];
        cosine[j] = static_cast<T>(std::cos(angle));
        sine[j] = static_cast<T>(std::sin(angle));
      }
    }
  });
}

template <class T>
void rotate(const RopeShape& s, Direction direction, const int64_t* positions, Heads<const T> x, Heads<T> y) {
  const int64_t half = s.head_size / 2;
  Scratch<T> table_scratch(s.length * s.head_size);
  T* table = table_scratch.data();
  fill_table(s, direction, positions, table);
  parallel_blocks(s.batch * s.length, rows_per_block(s.heads * s.head_size), [=](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t b = token / s.length;
      const int64_t t = token % s.length;
      const T* cosine = table + t * s.head_size;
      const T* sine = cosine + half;
      for (int64_t h = 0; h < s.heads; ++h) {
        const T* in = x.at(b, t, h);
        T* out = y.at(b, t, h);
        for (int64_t j = 0; j < half; ++j) {
          const T first = in[j];
          const T second = in[j + half];
          out[j] = first * cosine[j] - second * sine[j];
          out[j + half] = second * cosine[j] + first * sine[j];
        }
      }
    }
  });
}

}  // namespace

template <class T>
void rope_forward(Cpu, RopeShape shape, const int64_t* positions, Heads<const T> x, Heads<T> y) {
  rotate(shape, Direction::forward, positions, x, y);
}

template <class T>
void rope_backward(Cpu, RopeShape shape, const int64_t* positions, Heads<const T> dy, Heads<T> dx) {
  rotate(shape, Direction::backward, positions, dy, dx);
}

#define INSTANTIATE(T)                                                                     \
  template void rope_forward<T>(Cpu, RopeShape, const int64_t*, Heads<const T>, Heads<T>); \
  template void rope_backward<T>(Cpu, RopeShape, const int64_t*, Heads<const T>, Heads<T>);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
