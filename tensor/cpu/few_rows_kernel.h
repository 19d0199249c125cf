// Products of few rows of A, which read every element of B once, from where it lies.
//
// From memory, B comes at the full rate only while it is read from its first byte to its last: reading
// several of its rows at once halves the rate. So where B is transposed each of its rows is read to its end,
// and what hides the latency of a multiply-add is several sums of one row.
//
// Written once, as micro_kernel.h, which includes this file.
#pragma once

#include <cstdint>

#include "tensor/cpu/micro_kernels.h"
#include "tensor/cpu/registers.h"

namespace mixgrad {
namespace {

// Sums of a row of A, and rows of A that are multiplied at once: 12 sums, with what they add fit into 16
// registers.
constexpr int sums_of_row = 4;
constexpr int rows_at_once = 3;

using Four = float __attribute__((vector_size(16)));

/// The sum of a register's quarters.
template <int bytes>
Four folded(const typename Register<float, bytes>::Vector& x) {
  if constexpr (bytes == 16) {
    return x;
  } else {
    typename Register<float, bytes / 2>::Vector halves[2];
    __builtin_memcpy(halves, &x, bytes);
    return folded<bytes / 2>(halves[0] + halves[1]);
  }
}

/// The sum of the elements of each of four vectors.
inline Four totals(const Four* x) {
  const Four a =
      __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5) + __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
  const Four b =
      __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5) + __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
  return __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
}

/// Elements of C, numbers or vectors of them, from their sums and what they held; beta = 0 ignores that.
template <class Elements>
Elements result(const FewRows& s, const Elements& sums, const Elements& held) {
  return s.beta == 0.0f ? s.alpha * sums : s.alpha * sums + s.beta * held;
}

/// partial[i][part]: four numbers whose sum is row i of A times a row b of B, but for the last
/// depth % lanes elements.
template <int bytes, int rows>
void dot_products(const FewRows& s, const float* b, int part, Four (*partial)[4]) {
  using Loose = typename Register<float, bytes>::Loose;
  constexpr int lanes = Register<float, bytes>::lanes;
  typename Register<float, bytes>::Vector sum[rows][sums_of_row] = {};
  const auto add = [&](int64_t p, int to) {
    const Loose& weights = *reinterpret_cast<const Loose*>(b + p);
#pragma GCC unroll 3
    for (int i = 0; i < rows; ++i) {
      sum[i][to] += weights * *reinterpret_cast<const Loose*>(s.a.data + i * s.a.line + p);
    }
  };
  int64_t p = 0;
  for (; p + sums_of_row * lanes <= s.depth; p += sums_of_row * lanes) {
#pragma GCC unroll 4
    for (int to = 0; to < sums_of_row; ++to) add(p + to * lanes, to);
  }
  for (; p + lanes <= s.depth; p += lanes) add(p, 0);
#pragma GCC unroll 3
  for (int i = 0; i < rows; ++i) {
    partial[i][part] = folded<bytes>((sum[i][0] + sum[i][1]) + (sum[i][2] + sum[i][3]));
  }
}

/// B transposed: a row of it for each column of the product.
template <int bytes, int rows>
void rows_by_rows(const FewRows& s) {
  const int64_t whole = s.depth / Register<float, bytes>::lanes * Register<float, bytes>::lanes;
  for (int64_t j = 0; j < s.columns; j += 4) {
    const float* const b = s.b.data + j * s.b.line;
    const int count = s.columns - j < 4 ? static_cast<int>(s.columns - j) : 4;
    Four partial[rows][4] = {};
    for (int part = 0; part < count; ++part) {
      dot_products<bytes, rows>(s, b + part * s.b.line, part, partial);
    }
    for (int i = 0; i < rows; ++i) {
      Four sums = totals(partial[i]);
      for (int part = 0; part < count; ++part) {
        for (int64_t p = whole; p < s.depth; ++p) {
          sums[part] += s.a.data[i * s.a.line + p] * b[part * s.b.line + p];
        }
        float& c = s.c[i * s.ldc + j + part];
        c = result<float>(s, sums[part], c);
      }
    }
  }
}

/// B as it is, from column j on: columns of so many registers, then of half as many, then one by one.
template <int bytes, int rows, int registers>
void rows_by_columns(const FewRows& s, int64_t j) {
  using Vector = typename Register<float, bytes>::Vector;
  using Loose = typename Register<float, bytes>::Loose;
  constexpr int lanes = Register<float, bytes>::lanes;
  for (; j + registers * lanes <= s.columns; j += registers * lanes) {
    Vector sum[rows][registers] = {};
    for (int64_t p = 0; p < s.depth; ++p) {
#pragma GCC unroll 8
      for (int part = 0; part < registers; ++part) {
        const Loose& weights = *reinterpret_cast<const Loose*>(s.b.data + p * s.b.depth + j + part * lanes);
#pragma GCC unroll 3
        for (int i = 0; i < rows; ++i) sum[i][part] += s.a.data[i * s.a.line + p * s.a.depth] * weights;
      }
    }
    for (int i = 0; i < rows; ++i) {
      for (int part = 0; part < registers; ++part) {
        Loose& c = *reinterpret_cast<Loose*>(s.c + i * s.ldc + j + part * lanes);
        const Vector before = c;
        c = result<Vector>(s, sum[i][part], before);
      }
    }
  }
  if constexpr (registers > 1) return rows_by_columns<bytes, rows, registers / 2>(s, j);
  for (; j < s.columns; ++j) {
    for (int i = 0; i < rows; ++i) {
      float sum = 0;
      for (int64_t p = 0; p < s.depth; ++p) {
        sum += s.a.data[i * s.a.line + p * s.a.depth] * s.b.data[p * s.b.depth + j];
      }
      float& c = s.c[i * s.ldc + j];
      c = result(s, sum, c);
    }
  }
}

template <int bytes, int rows>
void multiply_rows(const FewRows& s) {
  if (s.b.depth == 1 && s.a.depth == 1) {
    rows_by_rows<bytes, rows>(s);
  } else {
    rows_by_columns<bytes, rows, rows == 1 ? 8 : sums_of_row>(s, 0);
  }
}

/// MicroKernels::multiply_few_rows.
template <int bytes>
void multiply_few_rows(int64_t rows, FewRows s) {
  constexpr void (*by_rows[rows_at_once])(const FewRows&) = {multiply_rows<bytes, 1>, multiply_rows<bytes, 2>,
                                                             multiply_rows<bytes, 3>};
  while (rows > 0) {
    // 4 rows are 2 and 2.
    const int64_t now = rows == rows_at_once + 1 ? 2 : rows < rows_at_once ? rows : rows_at_once;
    by_rows[now - 1](s);
    rows -= now;
    s.a.data += now * s.a.line;
    s.c += now * s.ldc;
  }
}

}  // namespace
}  // namespace mixgrad
