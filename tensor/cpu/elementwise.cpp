// Elementwise kernels on the CPU.
#include "tensor/kernels/elementwise.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tensor/allocator.h"
#include "tensor/cpu/reduce.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

constexpr int64_t block_elements = 16384;

/// y[i] = f(i), blocks in parallel.
template <class T, class F>
void map(int64_t n, T* y, const F& f) {
  parallel_blocks(n, block_elements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = f(i);
  });
}

}  // namespace

template <class T>
void add(Cpu, int64_t n, const T* a, const T* b, T* y) {
  map(n, y, [=](int64_t i) { return a[i] + b[i]; });
}

template <class T>
void scale(Cpu, int64_t n, T factor, const T* x, T* y) {
  map(n, y, [=](int64_t i) { return factor * x[i]; });
}

template <class F, class T>
void unary_forward(Cpu, int64_t n, const T* x, T* y) {
  map(n, y, [=](int64_t i) { return F::value(x[i]); });
}

template <class F, class T>
void unary_backward(Cpu, int64_t n, const T* x, const T* dy, T* dx) {
  map(n, dx, [=](int64_t i) { return dy[i] * F::slope(x[i]); });
}

template <class T>
void swiglu_forward(Cpu, int64_t n, const T* a, const T* b, T* y) {
  map(n, y, [=](int64_t i) { return Silu::value(a[i]) * b[i]; });
}

namespace {

/// Both gradients of n elements, from one exponential.
template <class T>
void swiglu_gradients(int64_t n, const T* a, const T* b, const T* dy, T* da, T* db) {
  for (int64_t i = 0; i < n; ++i) {
    const Sigmoids<T> s = sigmoids(a[i]);
    const T gradient = dy[i];
    da[i] = gradient * b[i] * Silu::slope(a[i], s);
    db[i] = gradient * a[i] * s.value;
  }
}

}  // namespace

template <class T>
void swiglu_backward(Cpu, int64_t n, const T* a, const T* b, const T* dy, T* da, T* db) {
  if (da != nullptr && db != nullptr) {
    parallel_blocks(n, block_elements, [=](int64_t begin, int64_t end) {
      swiglu_gradients(end - begin, a + begin, b + begin, dy + begin, da + begin, db + begin);
    });
  } else if (da != nullptr) {
    map(n, da, [=](int64_t i) { return dy[i] * b[i] * Silu::slope(a[i]); });
  } else if (db != nullptr) {
    map(n, db, [=](int64_t i) { return dy[i] * Silu::value(a[i]); });
  }
}

BroadcastShape broadcast(const char* op, const Shape& a, const Shape& b) {
  BroadcastShape result;
  const int rank = std::max(a.rank(), b.rank());
  for (int axis = 0; axis < rank; ++axis) result.shape.push_back(1);
  int64_t a_stride = 1;
  int64_t b_stride = 1;
  for (int axis = -1; axis >= -rank; --axis) {
    const int64_t a_size = -axis <= a.rank() ? a[axis] : 1;
    const int64_t b_size = -axis <= b.rank() ? b[axis] : 1;
    check(a_size == b_size || a_size == 1 || b_size == 1, "[", op, "] shapes ", a, " and ", b,
          " do not go together: axis ", axis, " has sizes ", a_size, " and ", b_size);
    result.shape[axis] = a_size == 1 ? b_size : a_size;
    result.a_strides[rank + axis] = a_size == 1 ? 0 : a_stride;
    result.b_strides[rank + axis] = b_size == 1 ? 0 : b_stride;
    a_stride *= a_size;
    b_stride *= b_size;
  }
  return result;
}

namespace {

/// y[i] = f(a value, b value), for contiguous y of the common shape.
template <class T, class F>
void broadcast_map(const BroadcastShape& s, const T* a, const T* b, T* y, const F& f) {
  const int rank = s.shape.rank();
  const int64_t columns = s.shape.columns();
  const int64_t a_step = rank > 0 ? s.a_strides[rank - 1] : 0;
  const int64_t b_step = rank > 0 ? s.b_strides[rank - 1] : 0;
  parallel_blocks(s.shape.rows(), rows_per_block(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t a_offset = 0;
      int64_t b_offset = 0;
      int64_t rest = row;
      for (int axis = rank - 2; axis >= 0; --axis) {
        const int64_t index = rest % s.shape[axis];
        rest /= s.shape[axis];
        a_offset += index * s.a_strides[axis];
        b_offset += index * s.b_strides[axis];
      }
      for (int64_t j = 0; j < columns; ++j) {
        y[row * columns + j] = f(a[a_offset + j * a_step], b[b_offset + j * b_step]);
      }
    }
  });
}

}  // namespace

template <class T>
void broadcast_add(Cpu, const BroadcastShape& shape, const T* a, const T* b, T* y) {
  broadcast_map(shape, a, b, y, [](T left, T right) { return left + right; });
}

template <class T>
void broadcast_multiply(Cpu, const BroadcastShape& shape, const T* a, const T* b, T* y) {
  broadcast_map(shape, a, b, y, [](T left, T right) { return left * right; });
}

namespace {

/// Axes beside each other that are all summed over or all kept.
struct Run {
  bool summed;
  int64_t size;
};

/// The common shape as runs, by which axes a was repeated along. Axes of size 1 are none.
std::vector<Run> runs_of(const BroadcastShape& s) {
  std::vector<Run> runs;
  for (int axis = 0; axis < s.shape.rank(); ++axis) {
    if (s.shape[axis] == 1) continue;
    const bool summed = s.a_strides[axis] == 0;
    if (runs.empty() || runs.back().summed != summed) runs.push_back({summed, 1});
    runs.back().size *= s.shape[axis];
  }
  return runs;
}

/// Sums x over the summed runs, one after the other; there is one at least.
template <class T>
void sum_runs(std::vector<Run> runs, const T* x, T* y) {
  const auto is_summed = [](const Run& run) { return run.summed; };
  const auto summed = std::find_if(runs.begin(), runs.end(), is_summed);
  int64_t outer = 1, inner = 1;
  for (auto run = runs.begin(); run != summed; ++run) outer *= run->size;
  for (auto run = summed + 1; run != runs.end(); ++run) inner *= run->size;
  const int64_t n = summed->size;
  runs.erase(summed);
  if (std::none_of(runs.begin(), runs.end(), is_summed)) {
    sum_axis(outer, n, inner, x, y);
  } else {
    Scratch<T> sums(outer * inner);
    sum_axis(outer, n, inner, x, sums.data());
    sum_runs(runs, sums.data(), y);
  }
}

}  // namespace

template <class T>
void broadcast_reduce(Cpu, const BroadcastShape& s, int64_t a_elements, const T* dy, T* da) {
  std::vector<Run> runs = runs_of(s);
  if (runs.empty() || (runs.size() == 1 && !runs[0].summed)) {
    map(a_elements, da, [=](int64_t i) { return dy[i]; });
  } else {
    sum_runs(std::move(runs), dy, da);
  }
}

template <class T>
void sum_all(Cpu, int64_t n, const T* x, T* y) {
  std::vector<T> partial((n + block_elements - 1) / block_elements);
  parallel_blocks(n, block_elements, [&](int64_t begin, int64_t end) {
    partial[begin / block_elements] = row_sum<T>(end - begin, [=](int64_t i) { return x[begin + i]; });
  });
  *y = 0;
  for (const T sum : partial) *y += sum;
}

namespace {

/// Blocks whose random words are drawn side by side.
constexpr int lanes = 64;

/// The words of `lanes` blocks from `first` on, in their order: Generator::block of each, with the loop over
/// the blocks innermost, so that it becomes vector instructions.
void draw_words(const Generator& generator, uint64_t first, uint32_t* words) {
  uint32_t c0[lanes], c1[lanes], c2[lanes], c3[lanes];
  for (int lane = 0; lane < lanes; ++lane) {
    const auto counter = generator.counter(first + lane);
    c0[lane] = counter[0];
    c1[lane] = counter[1];
    c2[lane] = counter[2];
    c3[lane] = counter[3];
  }
  auto key = generator.key();
  for (int round = 0; round < philox_rounds; ++round) {
#pragma omp simd
    for (int lane = 0; lane < lanes; ++lane) philox_round(key, c0[lane], c1[lane], c2[lane], c3[lane]);
    key = next_philox_key(key);
  }
  for (int lane = 0; lane < lanes; ++lane) {
    words[4 * lane] = c0[lane];
    words[4 * lane + 1] = c1[lane];
    words[4 * lane + 2] = c2[lane];
    words[4 * lane + 3] = c3[lane];
  }
}

}  // namespace

template <class T>
void dropout(Cpu, int64_t n, float rate, Generator generator, uint64_t first_block, const T* x, T* y) {
  const T kept = T(1) / (T(1) - T(rate));
  parallel_blocks(n, block_elements, [=](int64_t begin, int64_t end) {
    uint32_t words[4 * lanes];
    for (int64_t first = begin; first < end; first += 4 * lanes) {
      draw_words(generator, first_block + first / 4, words);
      const int64_t last = std::min<int64_t>(first + 4 * lanes, end);
      for (int64_t i = first; i < last; ++i) {
        const T scaled = kept * x[i];
        y[i] = uniform_from_word(words[i - first]) > rate ? scaled : T(0);
      }
    }
  });
}

template <class T>
void mask_rows(Cpu, int64_t rows, int64_t columns, const int32_t* mask, const T* x, T* y) {
  parallel_blocks(rows, rows_per_block(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* out = y + row * columns;
      if (mask[row] != 0)
        std::copy_n(x + row * columns, columns, out);
      else
        std::fill_n(out, columns, T(0));
    }
  });
}

#define INSTANTIATE_UNARY(F, T)                                  \
  template void unary_forward<F, T>(Cpu, int64_t, const T*, T*); \
  template void unary_backward<F, T>(Cpu, int64_t, const T*, const T*, T*);
#define INSTANTIATE(T)                                                                     \
  template void add<T>(Cpu, int64_t, const T*, const T*, T*);                              \
  template void scale<T>(Cpu, int64_t, T, const T*, T*);                                   \
  template void swiglu_forward<T>(Cpu, int64_t, const T*, const T*, T*);                   \
  template void swiglu_backward<T>(Cpu, int64_t, const T*, const T*, const T*, T*, T*);    \
  template void broadcast_add<T>(Cpu, const BroadcastShape&, const T*, const T*, T*);      \
  template void broadcast_multiply<T>(Cpu, const BroadcastShape&, const T*, const T*, T*); \
  template void broadcast_reduce<T>(Cpu, const BroadcastShape&, int64_t, const T*, T*);    \
  template void sum_all<T>(Cpu, int64_t, const T*, T*);                                    \
  template void dropout<T>(Cpu, int64_t, float, Generator, uint64_t, const T*, T*);        \
  template void mask_rows<T>(Cpu, int64_t, int64_t, const int32_t*, const T*, T*);         \
  INSTANTIATE_UNARY(Sigmoid, T)                                                            \
  INSTANTIATE_UNARY(LogSigmoid, T)                                                         \
  INSTANTIATE_UNARY(Softplus, T)                                                           \
  INSTANTIATE_UNARY(Silu, T)                                                               \
  INSTANTIATE_UNARY(GeluErf, T)                                                            \
  INSTANTIATE_UNARY(GeluTanh, T)                                                           \
  INSTANTIATE_UNARY(GeluTanhSlope, T)                                                      \
  INSTANTIATE_UNARY(Exp, T)                                                                \
  INSTANTIATE_UNARY(Reciprocal, T)                                                         \
  INSTANTIATE_UNARY(EluPlusOne, T)
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
