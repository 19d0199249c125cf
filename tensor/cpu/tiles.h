// Small matrices that one thread computes: products, triangular products and solves, and room for the
// results.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/allocator.h"
#include "tensor/cpu/packed_gemm.h"
#include "tensor/cpu/reduce.h"
#include "tensor/cpu/registers.h"
#include "tensor/cpu/tile_gemm.h"
#include "tensor/parallel.h"

namespace mixgrad {

/// A matrix in memory by its first element and the distance between its rows.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;

  T* operator[](int64_t row) const { return data + row * stride; }
  /// Without the first rows and columns.
  Rows from(int64_t row, int64_t column = 0) const { return {data + row * stride + column, stride}; }
  operator Rows<const T>() const { return {data, stride}; }
};

/// c = alpha a b + beta c, with a [m, k] and b [k, n].
template <class T>
void multiply(int64_t m, int64_t n, int64_t k, T alpha, Rows<const T> a, Rows<const T> b, T beta, Rows<T> c) {
  tile_gemm<T>({.m = m, .n = n, .k = k, .lda = a.stride, .ldb = b.stride, .ldc = c.stride}, alpha, a.data,
               b.data, beta, c.data);
}

/// c = alpha a b^T + beta c, with a [m, k] and b [n, k].
template <class T>
void multiply_bt(int64_t m, int64_t n, int64_t k, T alpha, Rows<const T> a, Rows<const T> b, T beta,
                 Rows<T> c) {
  tile_gemm<T>(
      {.m = m, .n = n, .k = k, .b = Transpose::yes, .lda = a.stride, .ldb = b.stride, .ldc = c.stride}, alpha,
      a.data, b.data, beta, c.data);
}

/// c = alpha a^T b + beta c, with a [k, m] and b [k, n].
template <class T>
void multiply_at(int64_t m, int64_t n, int64_t k, T alpha, Rows<const T> a, Rows<const T> b, T beta,
                 Rows<T> c) {
  tile_gemm<T>(
      {.m = m, .n = n, .k = k, .a = Transpose::yes, .lda = a.stride, .ldb = b.stride, .ldc = c.stride}, alpha,
      a.data, b.data, beta, c.data);
}

template <class T>
T dot(int64_t n, const T* a, const T* b) {
  return row_sum<T>(n, [=](int64_t i) { return a[i] * b[i]; });
}

template <class T>
void add_scaled(int64_t n, T factor, const T* x, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

// Products with lower triangular matrices [C, C] go by blocks of rows, so that what lies above a diagonal
// block is never computed nor read. That saves three eighths of the work of a chunk of 64, and keeps a NaN
// from the tokens before its block. Inside a diagonal block zeros are selected, not multiplied.

constexpr int64_t row_block = 16;

/// Calls body(begin, end) for each block of rows.
template <class Body>
void for_row_blocks(int64_t length, const Body& body) {
  for (int64_t begin = 0; begin < length; begin += row_block)
    body(begin, std::min(begin + row_block, length));
}

/// The same blocks, the last one first.
template <class Body>
void for_row_blocks_backwards(int64_t length, const Body& body) {
  for (int64_t begin = (length - 1) / row_block * row_block; begin >= 0; begin -= row_block) {
    body(begin, std::min(begin + row_block, length));
  }
}

/// The end of the block that row i is in: what products read of the row.
inline int64_t row_block_end(int64_t i, int64_t length) {
  return std::min((i / row_block + 1) * row_block, length);
}

/// lower = alpha times the lower triangle of a b^T + beta lower; a and b [C, dim]. By blocks of columns, as
/// wide as those of the product's kernels, so that each row of b is packed once.
template <class T>
void lower_product(int64_t length, int64_t dim, T alpha, Rows<const T> a, Rows<const T> b, T beta,
                   Rows<T> lower) {
  const int64_t width = micro_kernels().columns;
  for (int64_t begin = 0; begin < length; begin += width) {
    const int64_t end = std::min(begin + width, length);
    multiply_bt<T>(length - begin, end - begin, dim, alpha, a.from(begin), b.from(begin), beta,
                   lower.from(begin, begin));
  }
  for (int64_t i = 0; i < length; ++i) std::fill(lower[i] + i + 1, lower[i] + row_block_end(i, length), T(0));
}

/// y = alpha lower x + beta y; x and y [C, columns].
template <class T>
void lower_times(int64_t length, int64_t columns, T alpha, Rows<const T> lower, Rows<const T> x, T beta,
                 Rows<T> y) {
  for_row_blocks(length, [&](int64_t begin, int64_t end) {
    multiply<T>(end - begin, columns, end, alpha, lower.from(begin), x, beta, y.from(begin));
  });
}

/// y = alpha lower^T x + beta y; x and y [C, columns].
template <class T>
void lower_transposed_times(int64_t length, int64_t columns, T alpha, Rows<const T> lower, Rows<const T> x,
                            T beta, Rows<T> y) {
  for_row_blocks(length, [&](int64_t begin, int64_t end) {
    multiply_at<T>(end - begin, columns, length - begin, alpha, lower.from(begin, begin), x.from(begin), beta,
                   y.from(begin));
  });
}

/// One row of a substitution: x -= the sum over begin <= j < end of factor(j) scaled_j, and scaled_x = beta
/// x. Adds up as many columns at a time as fit into registers.
template <class T, class Factor>
void substitute_row(int64_t columns, int64_t begin, int64_t end, Rows<const T> scaled, const Factor& factor,
                    T beta, T* x, T* scaled_x) {
  using R = Register<T>;
  constexpr int registers = 256 / register_bytes;
  int64_t first = 0;
  for (; first + registers * R::lanes <= columns; first += registers * R::lanes) {
    typename R::Vector sums[registers];
#pragma GCC unroll 16
    for (int r = 0; r < registers; ++r) sums[r] = R::load(x + first + r * R::lanes);
    for (int64_t j = begin; j < end; ++j) {
      const T weight = factor(j);
      const T* const row = scaled[j] + first;
#pragma GCC unroll 16
      for (int r = 0; r < registers; ++r) sums[r] -= weight * R::load(row + r * R::lanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < registers; ++r) {
      R::store(sums[r], x + first + r * R::lanes);
      R::store(beta * sums[r], scaled_x + first + r * R::lanes);
    }
  }
  for (; first < columns; ++first) {
    for (int64_t j = begin; j < end; ++j) x[first] -= factor(j) * scaled[j][first];
    scaled_x[first] = beta * x[first];
  }
}

/// Solves x_i + sum over j < i of lower_ij beta_j x_j = given_i, with the given rows in x, by substitution:
/// with rows of which no product grows, as the delta rule's, it is as exact as computing them one by one.
/// scaled_i = beta_i x_i is written as well; x and scaled [C, columns]. What lower has on and above its
/// diagonal is not read.
template <class T>
void solve_lower(int64_t length, int64_t columns, Rows<const T> lower, Rows<const T> beta, Rows<T> x,
                 Rows<T> scaled) {
  for_row_blocks(length, [&](int64_t begin, int64_t end) {
    if (begin > 0) multiply<T>(end - begin, columns, begin, -1, lower.from(begin), scaled, 1, x.from(begin));
    for (int64_t i = begin; i < end; ++i) {
      substitute_row<T>(
          columns, begin, i, scaled, [&](int64_t j) { return lower[i][j]; }, *beta[i], x[i], scaled[i]);
    }
  });
}

/// The transpose: x_j + sum over i > j of lower_ij beta_i x_i = given_j.
template <class T>
void solve_lower_transposed(int64_t length, int64_t columns, Rows<const T> lower, Rows<const T> beta,
                            Rows<T> x, Rows<T> scaled) {
  for_row_blocks_backwards(length, [&](int64_t begin, int64_t end) {
    if (end < length) {
      multiply_at<T>(end - begin, columns, length - end, -1, lower.from(end, begin), scaled.from(end), 1,
                     x.from(begin));
    }
    for (int64_t j = end - 1; j >= begin; --j) {
      substitute_row<T>(
          columns, j + 1, end, scaled, [&](int64_t i) { return lower[i][j]; }, *beta[j], x[j], scaled[j]);
    }
  });
}

/// Memory for the tiles of the task that a thread is at.
template <class T>
class ThreadRoom {
 public:
  explicit ThreadRoom(int64_t size)
      : size_((size + 15) / 16 * 16), room_(size_ * thread_count()) {}  // whole cache lines each

  T* mine() { return room_.data() + size_ * thread_index(); }

 private:
  int64_t size_;
  Scratch<T> room_;
};

/// Cuts tiles from a task's room.
template <class T>
class Tiles {
 public:
  explicit Tiles(T* room) : next_(room) {}

  T* vector(int64_t size) {
    T* start = next_;
    next_ += size;
    return start;
  }
  Rows<T> matrix(int64_t rows, int64_t columns) { return {vector(rows * columns), columns}; }

 private:
  T* next_;
};

}  // namespace mixgrad
