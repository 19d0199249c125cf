// The innermost kernels of our own float matrix product, one set for each instruction set.
#pragma once

#include <array>
#include <cstdint>

namespace mixgrad {

/// Lines of a matrix: element p of line i is data[i * line + p * depth]. A's lines are its rows, B's its
/// columns, and `depth` runs along what the product sums over.
template <class T>
struct Lines {
  const T* data;
  int64_t line, depth;
};
using MatrixLines = Lines<float>;

/// C [rows, columns] = alpha sum over p of a(i, p) b(j, p) + beta C, where beta = 0 ignores what C held.
struct FewRows {
  int64_t columns, depth;
  float alpha;
  MatrixLines a, b;  // one stride of b is 1, and where it is b's line is not, a's depth is 1, too
  float beta;
  float* c;
  int64_t ldc;
};

/// The kernels for one instruction set.
struct MicroKernels {
  static constexpr int most_rows = 14;

  /// C [rows, columns] = alpha sum_p a(i, p) b[p * b_depth + j], or added to what C holds.
  using Multiply = void (*)(int64_t depth, float alpha, MatrixLines a, const float* b, int64_t b_depth,
                            float* c, int64_t ldc, bool add);

  const char* name;
  int rows;     // as many as fit into the registers: 14 rows of two with AVX-512's 32, 6 with 16
  int columns;  // two registers

  /// multiply[i]: for i + 1 rows.
  std::array<Multiply, most_rows> multiply;
  /// packed [depth, this->columns] from `columns` lines b[j * stride + p]; the columns beyond them become 0.
  void (*pack_transposed)(int64_t columns, int64_t depth, const float* b, int64_t stride, float* packed);
  /// A product of few rows, which packs nothing.
  void (*multiply_few_rows)(int64_t rows, FewRows product);
};

/// Null where this build or this CPU lacks the instructions.
const MicroKernels* avx512_kernels();
const MicroKernels* avx2_kernels();
/// For any CPU: what the compiler makes of vectors of 16 bytes.
const MicroKernels* portable_kernels();

}  // namespace mixgrad
