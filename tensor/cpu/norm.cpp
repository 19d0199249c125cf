// Normalisation on the CPU. Layer and RMS norm are one computation: RMS norm takes 0 for the mean, and its
// backward lacks the term that the mean would bring. Where `mean` is null, RMS norm is meant.
#include "tensor/kernels/norm.h"

#include <algorithm>
#include <cmath>

#include "tensor/allocator.h"
#include "tensor/cpu/reduce.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

/// Added up from the first entry, so that the mean of a constant row is exactly its value.
template <class T>
T row_mean(int64_t columns, const T* x) {
  const double first = columns > 0 ? x[0] : 0;
  const double rest = row_sum<double>(columns, [=](int64_t j) { return x[j] - first; });
  return static_cast<T>(first + rest / static_cast<double>(columns));
}

/// 1 / sqrt(mean of (x - mean)^2 + eps)
template <class T>
T inverse_deviation_of(int64_t columns, const T* x, T mean, double eps) {
  const double squares = row_sum<double>(columns, [=](int64_t j) {
    const double difference = x[j] - mean;
    return difference * difference;
  });
  return static_cast<T>(1 / std::sqrt(squares / static_cast<double>(columns) + eps));
}

template <class T>
void norm_forward(int64_t rows, int64_t columns, double eps, const T* x, const T* weight, const T* bias, T* y,
                  T* mean, T* inverse_deviation) {
  parallel_blocks(rows, rows_per_block(columns), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* in = x + row * columns;
      T* out = y + row * columns;
      const T centre = mean != nullptr ? row_mean(columns, in) : T(0);
      const T factor = inverse_deviation_of(columns, in, centre, eps);
      if (mean != nullptr) mean[row] = centre;
      inverse_deviation[row] = factor;
      for (int64_t j = 0; j < columns; ++j) out[j] = (in[j] - centre) * factor;
      if (weight != nullptr) {
        for (int64_t j = 0; j < columns; ++j) out[j] *= weight[j];
      }
      if (bias != nullptr) {
        for (int64_t j = 0; j < columns; ++j) out[j] += bias[j];
      }
    }
  });
}

/// One row's dx. normalised and weighted are [columns]: n and g of the formula.
template <class T>
void backward_row(int64_t columns, bool centred, T inverse_deviation, const T* normalised, const T* weighted,
                  T* dx) {
  const T count = static_cast<T>(columns);
  const T mean_g = centred ? row_sum<T>(columns, [=](int64_t j) { return weighted[j]; }) / count : T(0);
  const T mean_gn = row_sum<T>(columns, [=](int64_t j) { return weighted[j] * normalised[j]; }) / count;
  for (int64_t j = 0; j < columns; ++j) {
    dx[j] = (weighted[j] - mean_g - normalised[j] * mean_gn) * inverse_deviation;
  }
}

template <class T>
void norm_backward(int64_t rows, int64_t columns, const T* x, const T* weight, const T* mean,
                   const T* inverse_deviation, const T* dy, T* dx, T* dweight, T* dbias) {
  const int64_t block_rows = rows_per_partial_sum(rows, columns);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  Scratch<T> scratch(4 * blocks * columns);
  T* dweight_parts = scratch.data();
  T* dbias_parts = dweight_parts + blocks * columns;
  T* normalised_rows = dbias_parts + blocks * columns;
  T* weighted_rows = normalised_rows + blocks * columns;
  parallel_blocks(rows, block_rows, [=](int64_t begin, int64_t end) {
    const int64_t slice = begin / block_rows * columns;
    T* dweight_part = dweight_parts + slice;
    T* dbias_part = dbias_parts + slice;
    T* normalised = normalised_rows + slice;
    T* weighted = weighted_rows + slice;
    std::fill_n(dweight_part, columns, T(0));
    std::fill_n(dbias_part, columns, T(0));
    for (int64_t row = begin; row < end; ++row) {
      const T* in = x + row * columns;
      const T* gradient = dy + row * columns;
      const T centre = mean != nullptr ? mean[row] : T(0);
      const T factor = inverse_deviation[row];
      // A loop for each array that is written: one for all is not vectorised, for fear that they overlap.
      for (int64_t j = 0; j < columns; ++j) normalised[j] = (in[j] - centre) * factor;
      for (int64_t j = 0; j < columns; ++j) dweight_part[j] += gradient[j] * normalised[j];
      for (int64_t j = 0; j < columns; ++j) dbias_part[j] += gradient[j];
      if (dx == nullptr) continue;
      for (int64_t j = 0; j < columns; ++j) {
        weighted[j] = weight != nullptr ? gradient[j] * weight[j] : gradient[j];
      }
      backward_row(columns, mean != nullptr, inverse_deviation[row], normalised, weighted,
                   dx + row * columns);
    }
  });
  sum_blocks(blocks, columns, dweight_parts, dweight);
  sum_blocks(blocks, columns, dbias_parts, dbias);
}

}  // namespace

template <class T>
void layer_norm_forward(Cpu, int64_t rows, int64_t columns, double eps, const T* x, const T* weight,
                        const T* bias, T* y, T* mean, T* inverse_deviation) {
  norm_forward(rows, columns, eps, x, weight, bias, y, mean, inverse_deviation);
}

template <class T>
void layer_norm_backward(Cpu, int64_t rows, int64_t columns, const T* x, const T* weight, const T* mean,
                         const T* inverse_deviation, const T* dy, T* dx, T* dweight, T* dbias) {
  norm_backward(rows, columns, x, weight, mean, inverse_deviation, dy, dx, dweight, dbias);
}

template <class T>
void rms_norm_forward(Cpu, int64_t rows, int64_t columns, double eps, const T* x, const T* weight, T* y,
                      T* inverse_deviation) {
  norm_forward<T>(rows, columns, eps, x, weight, nullptr, y, nullptr, inverse_deviation);
}

template <class T>
void rms_norm_backward(Cpu, int64_t rows, int64_t columns, const T* x, const T* weight,
                       const T* inverse_deviation, const T* dy, T* dx, T* dweight) {
  norm_backward<T>(rows, columns, x, weight, nullptr, inverse_deviation, dy, dx, dweight, nullptr);
}

namespace {

/// y = f(gate)
template <class F, class T>
void activate(int64_t columns, const T* gate, T* y) {
  for (int64_t j = 0; j < columns; ++j) y[j] = F::value(gate[j]);
}

/// y *= f'(gate)
template <class F, class T>
void multiply_slope(int64_t columns, const T* gate, T* y) {
  for (int64_t j = 0; j < columns; ++j) y[j] *= F::slope(gate[j]);
}

// Where an array is changed in place, it is written as such: of y = a b with y = a a compiler that tests for
// overlap at run time takes the slow way.

/// y *= a, or nothing where a is null.
template <class T>
void multiply_by(int64_t columns, const T* a, T* y) {
  if (a == nullptr) return;
  for (int64_t j = 0; j < columns; ++j) y[j] *= a[j];
}

/// y = a b
template <class T>
void product(int64_t columns, const T* a, const T* b, T* y) {
  for (int64_t j = 0; j < columns; ++j) y[j] = a[j] * b[j];
}

/// total += a b
template <class T>
void add_product(int64_t columns, const T* a, const T* b, T* total) {
  for (int64_t j = 0; j < columns; ++j) total[j] += a[j] * b[j];
}

}  // namespace

template <class F, class T>
void gated_rms_norm_forward(Cpu, int64_t rows, int64_t columns, GateOrder order, double eps, const T* x,
                            const T* gate, const T* weight, T* y, T* inverse_deviation) {
  parallel_blocks(rows, rows_per_block(columns), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* in = x + row * columns;
      T* out = y + row * columns;
      activate<F>(columns, gate + row * columns, out);
      if (order == GateOrder::gate_first) multiply_by(columns, in, out);
      const T factor = inverse_deviation_of(columns, order == GateOrder::gate_first ? out : in, T(0), eps);
      inverse_deviation[row] = factor;
      if (order == GateOrder::norm_first) multiply_by(columns, in, out);
      for (int64_t j = 0; j < columns; ++j) out[j] *= factor;
      multiply_by(columns, weight, out);
    }
  });
}

template <class F, class T>
void gated_rms_norm_backward(Cpu, int64_t rows, int64_t columns, GateOrder order, const T* x, const T* gate,
                             const T* weight, const T* inverse_deviation, const T* dy, T* dx, T* dgate,
                             T* dweight) {
  const int64_t block_rows = rows_per_partial_sum(rows, columns);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  Scratch<T> scratch(4 * blocks * columns);
  T* all_rows = scratch.data();
  parallel_blocks(rows, block_rows, [=](int64_t begin, int64_t end) {
    const int64_t slice = begin / block_rows * columns;
    T* dweight_part = all_rows + slice;
    T* activated = dweight_part + blocks * columns;  // f(gate)
    T* normalised = activated + blocks * columns;    // n of the formula
    T* weighted = normalised + blocks * columns;     // g of the formula
    std::fill_n(dweight_part, columns, T(0));
    for (int64_t row = begin; row < end; ++row) {
      const T* in = x + row * columns;
      const T* gradient = dy + row * columns;
      const T* gate_row = gate + row * columns;
      T* dx_row = dx + row * columns;
      T* dgate_row = dgate + row * columns;
      const T factor = inverse_deviation[row];
      activate<F>(columns, gate_row, activated);
      for (int64_t j = 0; j < columns; ++j) normalised[j] = in[j] * factor;
      if (order == GateOrder::norm_first) {
        product(columns, gradient, activated, weighted);
        add_product(columns, weighted, normalised, dweight_part);
        multiply_by(columns, weight, weighted);
        backward_row(columns, false, factor, normalised, weighted, dx_row);
        product(columns, gradient, normalised, dgate_row);
        multiply_by(columns, weight, dgate_row);
      } else {
        multiply_by(columns, activated, normalised);
        add_product(columns, gradient, normalised, dweight_part);
        std::copy_n(gradient, columns, weighted);
        multiply_by(columns, weight, weighted);
        backward_row(columns, false, factor, normalised, weighted, dx_row);  // dz
        product(columns, dx_row, in, dgate_row);
        multiply_by(columns, activated, dx_row);
      }
      multiply_slope<F>(columns, gate_row, dgate_row);
    }
  });
  sum_blocks(blocks, columns, all_rows, dweight);
}

template <class T>
void l2_normalize_forward(Cpu, int64_t rows, int64_t columns, double eps, const T* x, T* y,
                          T* inverse_length) {
  parallel_blocks(rows, rows_per_block(columns), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* in = x + row * columns;
      T* out = y + row * columns;
      const double squares = row_sum<double>(columns, [=](int64_t j) {
        const double value = in[j];
        return value * value;
      });
      const T factor = static_cast<T>(1 / std::sqrt(squares + eps));
      inverse_length[row] = factor;
      for (int64_t j = 0; j < columns; ++j) out[j] = in[j] * factor;
    }
  });
}

template <class T>
void l2_normalize_backward(Cpu, int64_t rows, int64_t columns, const T* x, const T* inverse_length,
                           const T* dy, T* dx) {
  parallel_blocks(rows, rows_per_block(columns), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* in = x + row * columns;
      const T* gradient = dy + row * columns;
      T* out = dx + row * columns;
      const T factor = inverse_length[row];
      // n sum of dy n, with n = x factor never stored. In this order nothing overflows for large x.
      const T projection = row_sum<T>(columns, [=](int64_t j) { return gradient[j] * (in[j] * factor); });
      for (int64_t j = 0; j < columns; ++j) out[j] = (gradient[j] - in[j] * factor * projection) * factor;
    }
  });
}

#define INSTANTIATE_GATED(F, T)                                                                            \
  template void gated_rms_norm_forward<F, T>(Cpu, int64_t, int64_t, GateOrder, double, const T*, const T*, \
                                             const T*, T*, T*);                                            \
  template void gated_rms_norm_backward<F, T>(Cpu, int64_t, int64_t, GateOrder, const T*, const T*,        \
                                              const T*, const T*, const T*, T*, T*, T*);
#define INSTANTIATE(T)                                                                                       \
  template void layer_norm_forward<T>(Cpu, int64_t, int64_t, double, const T*, const T*, const T*, T*, T*,   \
                                      T*);                                                                   \
  template void layer_norm_backward<T>(Cpu, int64_t, int64_t, const T*, const T*, const T*, const T*,        \
                                       const T*, T*, T*, T*);                                                \
  template void rms_norm_forward<T>(Cpu, int64_t, int64_t, double, const T*, const T*, T*, T*);              \
  template void rms_norm_backward<T>(Cpu, int64_t, int64_t, const T*, const T*, const T*, const T*, T*, T*); \
  INSTANTIATE_GATED(Silu, T)                                                                                 \
  INSTANTIATE_GATED(Sigmoid, T)                                                                              \
  template void l2_normalize_forward<T>(Cpu, int64_t, int64_t, double, const T*, T*, T*);                    \
  template void l2_normalize_backward<T>(Cpu, int64_t, int64_t, const T*, const T*, const T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
