// Matrix products on the CPU: our own for float, OpenBLAS's for double and for products of very few columns.
#include "tensor/kernels/gemm.h"

#include <algorithm>

#include "tensor/cpu/bf16_gemm.h"
#include "tensor/cpu/blas.h"
#include "tensor/cpu/epilogue.h"
#include "tensor/cpu/few_rows_gemm.h"
#include "tensor/cpu/packed_gemm.h"
#include "tensor/cpu/reduce.h"
#include "tensor/cpu/tile_gemm.h"
#include "tensor/error.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

GemmShape with_strides(GemmShape s) {
  if (s.lda == 0) s.lda = s.a == Transpose::yes ? s.m : s.k;
  if (s.ldb == 0) s.ldb = s.b == Transpose::yes ? s.k : s.n;
  if (s.ldc == 0) s.ldc = s.n;
  return s;
}

/// Our packed kernels compute whole panels of columns, and packing one is paid back by several rows.
bool blas_is_faster(const GemmShape& s) { return s.m < 4 || 4 * s.n < 3 * micro_kernels().columns; }

// Tiles of OpenBLAS's products, each by one thread, so that the result does not depend on how many there are:
// large enough that packing its operands is a few percent of a tile's work.
constexpr int64_t tile_rows = 128;
constexpr int64_t tile_columns = 256;

template <class T>
void tiled_blas_gemm(const GemmShape& s, T alpha, const T* a, const T* b, T beta, T* c,
                     const Epilogue<T>& epilogue) {
  const int64_t row_tiles = (s.m + tile_rows - 1) / tile_rows;
  const int64_t column_tiles = (s.n + tile_columns - 1) / tile_columns;
  parallel_tasks(row_tiles * column_tiles, [&](int64_t tile) {
    const int64_t i = tile / column_tiles * tile_rows;
    const int64_t j = tile % column_tiles * tile_columns;
    GemmShape part = s;
    part.m = std::min(tile_rows, s.m - i);
    part.n = std::min(tile_columns, s.n - j);
    blas_gemm(part, alpha, a + i * (s.a == Transpose::yes ? 1 : s.lda),
              b + j * (s.b == Transpose::yes ? s.ldb : 1), beta, c + i * s.ldc + j);
    apply(epilogue, i, i + part.m, j, j + part.n, c, s.ldc);
  });
}

}  // namespace

namespace {
MatrixPrecision precision_in_use = MatrixPrecision::float32;
}

MatrixPrecision matrix_precision() { return precision_in_use; }

void set_matrix_precision(MatrixPrecision precision, Device device) {
  check_usage(
      precision == MatrixPrecision::float32 || device.kind != Device::Kind::cpu || bf16_kernels() != nullptr,
      "[gemm] precision bf16: this CPU has neither AMX nor AVX512_BF16; allowed: f32");
  precision_in_use = precision;
}

template <>
void tile_gemm(const GemmShape& shape, float alpha, const float* a, const float* b, float beta, float* c) {
  const GemmShape s = with_strides(shape);
  if (has_few_rows(s)) {
    few_rows_tile_gemm(s, alpha, a, b, beta, c);
  } else if (blas_is_faster(s)) {
    blas_gemm(s, alpha, a, b, beta, c);
  } else {
    packed_tile_gemm(s, alpha, a, b, beta, c);
  }
}

template <>
void tile_gemm(const GemmShape& shape, double alpha, const double* a, const double* b, double beta,
               double* c) {
  blas_gemm(with_strides(shape), alpha, a, b, beta, c);
}

template <>
void gemm(Cpu, GemmShape shape, float alpha, const float* a, const float* b, float beta, float* c,
          const Epilogue<float>& epilogue) {
  const GemmShape s = with_strides(shape);
  if (has_few_rows(s)) {
    few_rows_gemm(s, alpha, a, b, beta, c, epilogue);
  } else if (blas_is_faster(s)) {
    tiled_blas_gemm(s, alpha, a, b, beta, c, epilogue);
  } else if (matrix_precision() == MatrixPrecision::bfloat16 && bf16_kernels() != nullptr) {
    bf16_gemm(*bf16_kernels(), s, alpha, a, b, beta, c, epilogue);
  } else {
    packed_gemm(s, alpha, a, b, beta, c, epilogue);
  }
}

template <>
void gemm(Cpu, GemmShape shape, double alpha, const double* a, const double* b, double beta, double* c,
          const Epilogue<double>& epilogue) {
  tiled_blas_gemm(with_strides(shape), alpha, a, b, beta, c, epilogue);
}

template <class T>
void gemm_batched(Cpu, GemmShape shape, GemmBatch batch, T alpha, const T* a, const T* b, T beta, T* c) {
  parallel_tasks(batch.outer * batch.inner, [&](int64_t index) {
    const int64_t outer = index / batch.inner;
    const int64_t inner = index % batch.inner;
    tile_gemm(shape, alpha, a + outer * batch.a_outer + inner * batch.a_inner,
              b + outer * batch.b_outer + inner * batch.b_inner, beta,
              c + outer * batch.c_outer + inner * batch.c_inner);
  });
}

template <class T>
void bias_backward(Cpu, int64_t rows, int64_t columns, const T* dy, T* dbias) {
  sum_axis(1, rows, columns, dy, dbias);
}

#define INSTANTIATE(T)                                                                    \
  template void gemm_batched<T>(Cpu, GemmShape, GemmBatch, T, const T*, const T*, T, T*); \
  template void bias_backward<T>(Cpu, int64_t, int64_t, const T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
