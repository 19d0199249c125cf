// The innermost product of a matrix product: a few rows times a panel of columns, summed up in registers.
//
// Written once, in the compiler's vector extensions, and compiled for several instruction sets, one source
// file each: only those files may include this one.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "tensor/cpu/few_rows_kernel.h"
#include "tensor/cpu/micro_kernels.h"
#include "tensor/cpu/registers.h"

namespace mixgrad {
namespace {

/// MicroKernels::multiply for `rows` rows. Two registers wide: each element of A is loaded once for two
/// multiply-adds.
template <int bytes, int rows>
void multiply(int64_t depth, float alpha, MatrixLines a, const float* b, int64_t b_depth, float* c,
              int64_t ldc, bool add) {
  using Vector = typename Register<float, bytes>::Vector;
  using Loose = typename Register<float, bytes>::Loose;
  constexpr int lanes = Register<float, bytes>::lanes;
  Vector left[rows] = {}, right[rows] = {};  // the sums
  // Three pointers and multiples of one stride reach all rows with few general registers.
  constexpr int third = 5;
  const float* a_rows[3] = {a.data, a.data + third * a.line, a.data + 2 * third * a.line};
  for (int64_t p = 0; p < depth; ++p) {
    const Vector b_left = *reinterpret_cast<const Loose*>(b);
    const Vector b_right = *reinterpret_cast<const Loose*>(b + lanes);
    b += b_depth;  // before the vectors are used: else g++ loads them anew for each of up to four rows
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const float element = a_rows[i / third][i % third * a.line];
      left[i] += element * b_left;
      right[i] += element * b_right;
    }
    for (const float*& row : a_rows) row += a.depth;
  }
  const auto for_each_register = [&](const auto& body) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      body(reinterpret_cast<Loose*>(c + i * ldc), left[i]);
      body(reinterpret_cast<Loose*>(c + i * ldc + lanes), right[i]);
    }
  };
  if (add) {
    for_each_register([alpha](Loose* to, const Vector& sum) { *to += alpha * sum; });
  } else {
    for_each_register([alpha](Loose* to, const Vector& sum) { *to = alpha * sum; });
  }
}

/// x[i][j] <-> x[j][i]: exchanges blocks of `step` elements across the diagonal, then of twice as many.
template <int step, class Vector, int... lane>
void transpose_square(Vector* x, std::integer_sequence<int, lane...> all) {
  constexpr int lanes = sizeof...(lane);
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i) {
    if ((i & step) != 0) continue;
    const Vector upper = x[i], lower = x[i + step];
    x[i] = __builtin_shufflevector(upper, lower, ((lane & step) != 0 ? lanes + lane - step : lane)...);
    x[i + step] = __builtin_shufflevector(upper, lower, ((lane & step) != 0 ? lanes + lane : lane + step)...);
  }
  if constexpr (2 * step < lanes) transpose_square<2 * step>(x, all);
}

/// MicroKernels::pack_transposed.
template <int bytes>
void pack_transposed(int64_t columns, int64_t depth, const float* b, int64_t stride, float* packed) {
  using Vector = typename Register<float, bytes>::Vector;
  using Loose = typename Register<float, bytes>::Loose;
  constexpr int lanes = Register<float, bytes>::lanes;
  constexpr int width = 2 * lanes;
  const int64_t whole = columns / lanes * lanes, whole_depth = depth / lanes * lanes;
  for (int64_t j = 0; j < whole; j += lanes) {
    for (int64_t p = 0; p < whole_depth; p += lanes) {
      Vector square[lanes];
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) square[i] = *reinterpret_cast<const Loose*>(b + (j + i) * stride + p);
      transpose_square<1>(square, std::make_integer_sequence<int, lanes>());
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) *reinterpret_cast<Loose*>(packed + (p + i) * width + j) = square[i];
    }
  }
  for (int64_t p = 0; p < depth; ++p) {
    for (int64_t j = p < whole_depth ? whole : 0; j < width; ++j) {
      packed[p * width + j] = j < columns ? b[j * stride + p] : 0.0f;
    }
  }
}

template <int bytes, int... counts>
constexpr std::array<MicroKernels::Multiply, sizeof...(counts)> multiply_by_rows(
    std::integer_sequence<int, counts...>) {
  return {multiply<bytes, counts + 1>...};
}

/// The kernels for registers of so many bytes, with up to `rows` rows.
template <int bytes, int rows>
constexpr MicroKernels make_micro_kernels(const char* name) {
  MicroKernels kernels{
      name, rows, 2 * Register<float, bytes>::lanes, {}, pack_transposed<bytes>, multiply_few_rows<bytes>};
  const auto by_rows = multiply_by_rows<bytes>(std::make_integer_sequence<int, rows>());
  for (int i = 0; i < rows; ++i) kernels.multiply[i] = by_rows[i];
  return kernels;
}

}  // namespace
}  // namespace mixgrad
