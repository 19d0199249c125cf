// What is done to a block of a product's elements while they are in the cache.
#pragma once

#include "tensor/kernels/gemm.h"
#include "tensor/kernels/scalar.h"

namespace mixgrad {

/// Applies the epilogue to rows [row, row_end) and columns [column, column_end) of C.
template <class T>
void apply(const Epilogue<T>& epilogue, int64_t row, int64_t row_end, int64_t column, int64_t column_end,
           T* c, int64_t ldc) {
  const int64_t columns = column_end - column;
  for (int64_t i = row; i < row_end; ++i) {
    const int64_t first = i * ldc + column;
    T* const y = c + first;
    if (epilogue.bias != nullptr) {
      const T* const bias = epilogue.bias + column;
      for (int64_t j = 0; j < columns; ++j) y[j] += bias[j];
    }
    if (epilogue.gelu != nullptr) {
      T* const activated = epilogue.gelu + first;
      for (int64_t j = 0; j < columns; ++j) activated[j] = GeluTanh::value(y[j]);
    }
    if (epilogue.gelu_input != nullptr) {
      const T* const x = epilogue.gelu_input + first;
      for (int64_t j = 0; j < columns; ++j) y[j] *= GeluTanh::slope(x[j]);
    }
  }
}

}  // namespace mixgrad
