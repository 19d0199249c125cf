// Both operands are rounded and packed, a part at a time: A as [block of rows][row][pair], B as
// [panel][pair][column]. Then each block of C is a sum over one block of A and one panel of B.
#include "tensor/cpu/bf16_gemm.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tensor/allocator.h"
#include "tensor/cpu/epilogue.h"
#include "tensor/cpu/packed_gemm.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

constexpr int64_t block_rows = Bf16Kernels::rows;
constexpr int64_t panel_columns = Bf16Kernels::columns;
static_assert(block_rows == panel_columns);  // PackedLines packs both
// A block of A and a panel of B, 32 KiB each; and how much of both is packed at a time, 4 MiB at most.
constexpr int64_t depth_pairs = 256;
constexpr int64_t most_lines = 4096;
constexpr int64_t task_panels = 12;  // a task: one block of rows times 384 columns

int64_t ceiling(int64_t count, int64_t unit) { return (count + unit - 1) / unit; }

/// The upper half of x's bits, rounded to nearest, ties to even; NaN stays NaN.
uint32_t bf16_bits(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return std::isnan(x) ? 0x7fc0 : rounded;
}

uint32_t pair_of(float first, float second) { return bf16_bits(first) | bf16_bits(second) << 16; }

/// Some lines and some p of an operand, packed in blocks of 32 lines, padded with zeros.
struct PackedLines {
  MatrixLines from;
  int64_t first, end;            // lines
  int64_t first_p, end_p;        // p
  int64_t pairs;                 // of (end_p - first_p), rounded up
  int64_t line_step, pair_step;  // of a packed line and pair, within a block
  uint32_t* packed;

  int64_t blocks() const { return ceiling(end - first, block_rows); }
  uint32_t* block(int64_t index) const { return packed + index * block_rows * pairs; }

  void pack(int64_t index) const {
    const int64_t begin = first + index * block_rows;
    const int64_t count = std::min(block_rows, end - begin);
    const float* const data = from.data + begin * from.line;
    uint32_t* const to = block(index);
    for (int64_t i = count; i < block_rows; ++i) {
      for (int64_t pair = 0; pair < pairs; ++pair) to[i * line_step + pair * pair_step] = 0;
    }
    // Pairs of which both p exist; then the one that lacks its second, and padding.
    const int64_t whole = (end_p - first_p) / 2;
    const auto pack_pair = [&](int64_t i, int64_t pair) {
      const float* const element = data + i * from.line + (first_p + 2 * pair) * from.depth;
      to[i * line_step + pair * pair_step] = pair_of(element[0], element[from.depth]);
    };
    if (from.depth == 1) {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t pair = 0; pair < whole; ++pair) pack_pair(i, pair);
      }
    } else {
      for (int64_t pair = 0; pair < whole; ++pair) {
        for (int64_t i = 0; i < count; ++i) pack_pair(i, pair);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t pair = whole; pair < pairs; ++pair) {
        const int64_t p = first_p + 2 * pair;
        to[i * line_step + pair * pair_step] =
            p < end_p ? pair_of(data[i * from.line + p * from.depth], 0.0f) : 0;
      }
    }
  }
};

/// C's block at (row, column) = alpha block + beta C.
void store(const GemmShape& s, int64_t row, int64_t column, float alpha, const float* block, float beta,
           float* c) {
  const int64_t columns = std::min(panel_columns, s.n - column);
  for (int64_t i = 0; i < std::min(block_rows, s.m - row); ++i) {
    float* const to = c + (row + i) * s.ldc + column;
    const float* const sum = block + i * panel_columns;
    if (beta == 0.0f) {
      for (int64_t j = 0; j < columns; ++j) to[j] = alpha * sum[j];
    } else {
      for (int64_t j = 0; j < columns; ++j) to[j] = alpha * sum[j] + beta * to[j];
    }
  }
}

}  // namespace

const Bf16Kernels* bf16_kernels() {
  const Bf16Kernels* const amx = amx_kernels();
  return amx != nullptr ? amx : avx512_bf16_kernels();
}

void bf16_gemm(const Bf16Kernels& kernels, const GemmShape& s, float alpha, const float* a, const float* b,
               float beta, float* c, const Epilogue<float>& epilogue) {
  const MatrixLines rows = lines_of_a(s, a);
  const MatrixLines columns = lines_of_b(s, b);
  const auto room_size = [](int64_t lines) {
    return ceiling(std::min(lines, most_lines), block_rows) * block_rows * depth_pairs;
  };
  Scratch<uint32_t> a_room(room_size(s.m)), b_room(room_size(s.n));
  const int64_t depth = 2 * depth_pairs;
  for (int64_t row = 0; row < s.m; row += most_lines) {
    for (int64_t column = 0; column < s.n; column += most_lines) {
      for (int64_t p = 0; p == 0 || p < s.k; p += depth) {
        const int64_t end_p = std::min(s.k, p + depth);
        const int64_t pairs = ceiling(end_p - p, 2 * Bf16Kernels::pair_unit) * Bf16Kernels::pair_unit;
        const PackedLines a_part{rows, row,          std::min(s.m, row + most_lines), p, end_p, pairs, pairs,
                                 1,    a_room.data()};
        const PackedLines b_part{columns, column,        std::min(s.n, column + most_lines),
                                 p,       end_p,         pairs,
                                 1,       panel_columns, b_room.data()};
        parallel_tasks(a_part.blocks() + b_part.blocks(), [&](int64_t index) {
          index < a_part.blocks() ? a_part.pack(index) : b_part.pack(index - a_part.blocks());
        });
        const int64_t groups = ceiling(b_part.blocks(), task_panels);
        parallel_tasks(a_part.blocks() * groups, [&](int64_t task) {
          const int64_t block = task / groups, first = task % groups * task_panels;
          const int64_t end = std::min(b_part.blocks(), first + task_panels);
          const int64_t at_row = row + block * block_rows;
          alignas(64) float sums[block_rows * panel_columns];
          kernels.begin();
          for (int64_t panel = first; panel < end; ++panel) {
            kernels.multiply(pairs, a_part.block(block), pairs, b_part.block(panel), sums);
            store(s, at_row, column + panel * panel_columns, alpha, sums, p == 0 ? beta : 1.0f, c);
          }
          kernels.end();
          if (end_p == s.k) {
            apply(epilogue, at_row, std::min(s.m, at_row + block_rows), column + first * panel_columns,
                  std::min(s.n, column + end * panel_columns), c, s.ldc);
          }
        });
      }
    }
  }
}

}  // namespace mixgrad
