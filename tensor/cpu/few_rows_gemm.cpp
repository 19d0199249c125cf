#include "tensor/cpu/few_rows_gemm.h"

#include <algorithm>

#include "tensor/cpu/epilogue.h"
#include "tensor/cpu/packed_gemm.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

// Of matrices of 384 to 1536 rows and columns, packing pays from 8 to 12 rows on; of 128, which stay in the
// first-level cache, from 5.
constexpr int64_t most_rows = 6;
// Columns at once: so many elements of B that the second-level cache has them still when the next rows want
// them, and that they are worth a thread's while; in whole blocks of the kernels' columns.
constexpr int64_t block_elements = 1 << 15;
constexpr int64_t kernel_columns = 128;

int64_t block_columns(const GemmShape& s) {
  const int64_t columns = block_elements / std::max<int64_t>(1, s.k);
  return std::max<int64_t>(1, columns / kernel_columns) * kernel_columns;
}

void multiply_columns(const GemmShape& s, float alpha, const float* a, const float* b, float beta, float* c,
                      int64_t begin, int64_t end) {
  MatrixLines columns = lines_of_b(s, b);
  columns.data += begin * columns.line;
  micro_kernels().multiply_few_rows(
      s.m, {end - begin, s.k, alpha, lines_of_a(s, a), columns, beta, c + begin, s.ldc});
}

}  // namespace

bool has_few_rows(const GemmShape& s) {
  const bool in_rows = s.b == Transpose::no || lines_of_a(s, nullptr).depth == 1;
  return s.m <= most_rows && in_rows;
}

void few_rows_tile_gemm(const GemmShape& s, float alpha, const float* a, const float* b, float beta,
                        float* c) {
  const int64_t block = block_columns(s);
  for (int64_t begin = 0; begin < s.n; begin += block) {
    multiply_columns(s, alpha, a, b, beta, c, begin, std::min(s.n, begin + block));
  }
}

void few_rows_gemm(const GemmShape& s, float alpha, const float* a, const float* b, float beta, float* c,
                   const Epilogue<float>& epilogue) {
  parallel_blocks(s.n, block_columns(s), [&](int64_t begin, int64_t end) {
    multiply_columns(s, alpha, a, b, beta, c, begin, end);
    apply(epilogue, 0, s.m, begin, end, c, s.ldc);
  });
}

}  // namespace mixgrad
