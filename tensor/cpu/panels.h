// Products of tiles whose second operand is read as panels: columns side by side, as many as a micro-kernel
// takes at once. Kernels that use an operand many times lay it out so once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/cpu/packed_gemm.h"

namespace mixgrad {

/// Rows that are multiplied at once at most, and columns of a panel.
struct PanelSize {
  int64_t rows, columns;
};

template <class T>
PanelSize panel_size();
template <>
inline PanelSize panel_size<float>() {
  return {micro_kernels().rows, micro_kernels().columns};
}
template <>
inline PanelSize panel_size<double>() {
  return {8, 8};
}

/// Columns, filled up to whole panels.
template <class T>
int64_t padded(int64_t columns) {
  const int64_t width = panel_size<T>().columns;
  return (columns + width - 1) / width * width;
}

/// C [rows, width of a panel] = alpha A B, or added to what C holds; row p of B is b[p * b_stride].
inline void multiply_panel(int64_t rows, int64_t depth, float alpha, Lines<float> a, const float* b,
                           int64_t b_stride, float* c, int64_t c_stride, bool add) {
  micro_kernels().multiply[rows - 1](depth, alpha, a, b, b_stride, c, c_stride, add);
}
inline void multiply_panel(int64_t rows, int64_t depth, double alpha, Lines<double> a, const double* b,
                           int64_t b_stride, double* c, int64_t c_stride, bool add) {
  constexpr int64_t width = 8;
  for (int64_t i = 0; i < rows; ++i) {
    double sums[width] = {};
    for (int64_t p = 0; p < depth; ++p) {
      const double element = a.data[i * a.line + p * a.depth];
      for (int64_t j = 0; j < width; ++j) sums[j] += element * b[p * b_stride + j];
    }
    for (int64_t j = 0; j < width; ++j) {
      double& to = c[i * c_stride + j];
      to = add ? to + alpha * sums[j] : alpha * sums[j];
    }
  }
}

/// One panel [depth, width], without gaps, of the transpose of x [columns, depth]; zeros beyond its columns.
inline void transpose_to_panel(int64_t columns, int64_t depth, const float* x, int64_t x_stride,
                               float* panel) {
  micro_kernels().pack_transposed(columns, depth, x, x_stride, panel);
}
inline void transpose_to_panel(int64_t columns, int64_t depth, const double* x, int64_t x_stride,
                               double* panel) {
  constexpr int64_t width = 8;
  for (int64_t p = 0; p < depth; ++p) {
    for (int64_t j = 0; j < width; ++j) panel[p * width + j] = j < columns ? x[j * x_stride + p] : 0.0;
  }
}

}  // namespace mixgrad
