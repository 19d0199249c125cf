// Layer and RMS normalisation on the CPU. They are one computation: RMS norm takes 0 for the mean, and its
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

/// total[j] = sum over blocks of partial[block, j], in their order; nothing where total is null.
template <class T>
void sum_blocks(int64_t blocks, int64_t columns, const T* partial, T* total) {
  if (total == nullptr) return;
  std::fill_n(total, columns, T(0));
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t j = 0; j < columns; ++j) total[j] += partial[block * columns + j];
  }
}

template <class T>
void norm_backward(int64_t rows, int64_t columns, const T* x, const T* weight, const T* mean,
                   const T* inverse_deviation, const T* dy, T* dx, T* dweight, T* dbias) {
  // At most 128 blocks, so that their partial sums stay few beside the rows themselves.
  const int64_t block_rows = std::max(rows_per_block(columns), (rows + 127) / 128);
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

#define INSTANTIATE(T)                                                                                     \
  template void layer_norm_forward<T>(Cpu, int64_t, int64_t, double, const T*, const T*, const T*, T*, T*, \
                                      T*);                                                                 \
  template void layer_norm_backward<T>(Cpu, int64_t, int64_t, const T*, const T*, const T*, const T*,      \
                                       const T*, T*, T*, T*);                                              \
  template void rms_norm_forward<T>(Cpu, int64_t, int64_t, double, const T*, const T*, T*, T*);            \
  template void rms_norm_backward<T>(Cpu, int64_t, int64_t, const T*, const T*, const T*, const T*, T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
