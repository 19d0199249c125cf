// Matrix products on the CPU: tiles of a fixed size, each computed by one thread, so that the result does not
// depend on how many there are.
#include "tensor/kernels/gemm.h"

#include <algorithm>

#include "tensor/cpu/blas.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

// Large enough that packing its operands is a few percent of a tile's work, small enough that the products of
// a small model still make several tiles.
constexpr int64_t tile_rows = 128;
constexpr int64_t tile_columns = 256;

GemmShape with_strides(GemmShape s) {
  if (s.lda == 0) s.lda = s.a == Transpose::yes ? s.m : s.k;
  if (s.ldb == 0) s.ldb = s.b == Transpose::yes ? s.k : s.n;
  if (s.ldc == 0) s.ldc = s.n;
  return s;
}

}  // namespace

template <class T>
void gemm(Cpu, GemmShape shape, T alpha, const T* a, const T* b, T beta, T* c) {
  const GemmShape s = with_strides(shape);
  const int64_t row_tiles = (s.m + tile_rows - 1) / tile_rows;
  const int64_t column_tiles = (s.n + tile_columns - 1) / tile_columns;
  parallel_tasks(row_tiles * column_tiles, [&](int64_t tile) {
    const int64_t i = tile / column_tiles * tile_rows;
    const int64_t j = tile % column_tiles * tile_columns;
    GemmShape part = s;
    part.m = std::min(tile_rows, s.m - i);
    part.n = std::min(tile_columns, s.n - j);
    tile_gemm(part, alpha, a + i * (s.a == Transpose::yes ? 1 : s.lda),
              b + j * (s.b == Transpose::yes ? s.ldb : 1), beta, c + i * s.ldc + j);
  });
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
void bias_forward(Cpu, int64_t rows, int64_t columns, const T* bias, T* y) {
  parallel_blocks(rows, rows_per_block(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t j = 0; j < columns; ++j) y[row * columns + j] += bias[j];
    }
  });
}

template <class T>
void bias_backward(Cpu, int64_t rows, int64_t columns, const T* dy, T* dbias) {
  constexpr int64_t block = 16;  // columns: one cache line of floats
  parallel_blocks(columns, block, [&](int64_t begin, int64_t end) {
    std::fill(dbias + begin, dbias + end, T(0));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t j = begin; j < end; ++j) dbias[j] += dy[row * columns + j];
    }
  });
}

#define INSTANTIATE(T)                                                                    \
  template void gemm<T>(Cpu, GemmShape, T, const T*, const T*, T, T*);                    \
  template void gemm_batched<T>(Cpu, GemmShape, GemmBatch, T, const T*, const T*, T, T*); \
  template void bias_forward<T>(Cpu, int64_t, int64_t, const T*, T*);                     \
  template void bias_backward<T>(Cpu, int64_t, int64_t, const T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
