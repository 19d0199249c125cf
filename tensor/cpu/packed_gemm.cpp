// C is computed in blocks of a few rows, whose sums stay in registers, times panels of two registers'
// columns.
//
// Sums over more than `depth_block` are split, so that a row block's part of A stays in the first-level cache
// while all panels of B pass by from the second. B is packed into panels, so that a kernel reads them from
// first to last; A only where its elements are not found in a row, or where its rows would evict each other.
#include "tensor/cpu/packed_gemm.h"

#include <algorithm>
#include <cstring>

#include "tensor/allocator.h"
#include "tensor/cpu/epilogue.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

constexpr int64_t depth_block = 384;  // 14 rows of it are 21 KiB of a first-level cache
constexpr int64_t packed_at_once = 32;
// Copies that don't pay: of a transposed A that stays in a first-level cache where it lies, of a B for so few
// rows.
constexpr int64_t short_depth = 128;
constexpr int64_t few_rows = 112;
// A task: about 56 rows times 1536 columns. Smaller products are left to one thread.
constexpr int64_t task_blocks = 4;
constexpr int64_t task_columns = 1536;
constexpr int64_t least_parallel_work = int64_t{1} << 18;  // multiply-adds
constexpr int64_t most_width = 32;                         // of a panel

constexpr int64_t ceiling(int64_t count, int64_t unit) { return (count + unit - 1) / unit; }

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

/// Part `index` of [0, count) in `parts` parts whose sizes differ by one at most.
Range even_part(int64_t count, int64_t parts, int64_t index) {
  return {count * index / parts, count * (index + 1) / parts};
}

/// Strides of so many floats map the same place of all rows to few sets of a cache.
bool conflicts(int64_t stride) { return stride % 1024 == 0; }

/// Copies a few floats; a call of the library's function would take longer than the copy. The last blocks
/// overlap.
[[gnu::always_inline]] inline void copy_few(const float* from, int64_t count, float* to) {
  const auto copy = [&]<int size>() {
    for (int64_t i = 0; i + size < count; i += size) std::memcpy(to + i, from + i, size * sizeof(float));
    std::memcpy(to + count - size, from + count - size, size * sizeof(float));
  };
  if (count >= 16) {
    copy.template operator()<16>();
  } else if (count >= 8) {
    copy.template operator()<8>();
  } else if (count >= 4) {
    copy.template operator()<4>();
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
}

/// One product on its way.
struct Product {
  const MicroKernels& kernels;
  GemmShape shape;
  float alpha;
  MatrixLines a, b;  // rows of op(A), columns of op(B)
  float beta;
  float* c;

  Product(const GemmShape& s, float alpha, const float* a, const float* b, float beta, float* c)
      : kernels(micro_kernels()),
        shape(s),
        alpha(alpha),
        a(lines_of_a(s, a)),
        b(lines_of_b(s, b)),
        beta(beta),
        c(c) {}
};

/// Some rows of A, columns of B and p, whose product is added to a part of C. Row blocks are numbered from
/// the part's first; their sizes differ by one at most.
class Part {
 public:
  /// Rooms for what is packed, of the sizes below; null: reads that operand in place.
  Part(const Product& product, Range rows, Range columns, Range depth, float* a_room, float* b_room)
      : product_(product),
        rows_(rows),
        columns_(columns),
        depth_(depth),
        a_room_(a_room),
        b_room_(b_room),
        row_blocks_(ceiling(rows.size(), product.kernels.rows)),
        block_size_(rows.size() / row_blocks_),
        longer_blocks_(rows.size() % row_blocks_) {}

  static constexpr int64_t a_room_size(int64_t rows) { return rows * (depth_block + 16); }
  static constexpr int64_t b_room_size(int64_t columns) {
    return ceiling(columns, most_width) * most_width * depth_block;
  }

  int64_t slices() const { return ceiling(depth_.size(), packed_at_once); }
  /// Packs a slice of the p, for all rows and columns.
  void pack(int64_t slice) const {
    const Range part{depth_.begin + slice * packed_at_once,
                     std::min(depth_.end, depth_.begin + (slice + 1) * packed_at_once)};
    if (a_room_ != nullptr) pack_a(part);
    if (b_room_ != nullptr) pack_b(part);
  }

  int64_t tasks() const { return row_tasks() * ceiling(columns_.size(), task_columns); }
  /// Computes a task's share of C; with the last p, finishes it.
  void multiply(int64_t task, const Epilogue<float>& epilogue) const {
    const int64_t first = columns_.begin + task / row_tasks() * task_columns;
    const Range columns{first, std::min(columns_.end, first + task_columns)};
    const int64_t begin = task % row_tasks() * task_blocks;
    const int64_t end = std::min(row_blocks_, begin + task_blocks);
    for (int64_t block = begin; block < end; ++block) {
      const Range rows = rows_of(block);
      if (depth_.begin == 0) scale(rows, columns);
      multiply_block(block, columns);
      if (depth_.end == product_.shape.k) {
        apply(epilogue, rows.begin, rows.end, columns.begin, columns.end, product_.c, product_.shape.ldc);
      }
    }
  }

 private:
  int64_t width() const { return product_.kernels.columns; }
  int64_t row_tasks() const { return ceiling(row_blocks_, task_blocks); }
  Range rows_of(int64_t block) const {
    const auto begin = [&](int64_t i) { return rows_.begin + i * block_size_ + std::min(i, longer_blocks_); };
    return {begin(block), begin(block + 1)};
  }

  /// Where rows are contiguous, copies each without a gap to a distance that is no power of two; else each
  /// row block as [p][row].
  void pack_a(Range depth) const {
    const MatrixLines& a = product_.a;
    if (a.depth == 1) {
      for (int64_t i = rows_.begin; i < rows_.end; ++i) {
        copy_few(a.data + i * a.line + depth.begin, depth.size(), packed_row(i) + depth.begin - depth_.begin);
      }
      return;
    }
    for (int64_t p = depth.begin; p < depth.end; ++p) {
      for (int64_t block = 0; block < row_blocks_; ++block) {
        const Range rows = rows_of(block);
        copy_few(a.data + p * a.depth + rows.begin, rows.size(),
                 packed_block(rows) + (p - depth_.begin) * rows.size());
      }
    }
  }
  int64_t packed_line() const { return depth_.size() + 16; }
  float* packed_row(int64_t row) const { return a_room_ + (row - rows_.begin) * packed_line(); }
  float* packed_block(Range rows) const { return a_room_ + (rows.begin - rows_.begin) * depth_.size(); }

  MatrixLines rows_of_a(Range rows) const {
    const MatrixLines& a = product_.a;
    if (a_room_ == nullptr) return {a.data + rows.begin * a.line + depth_.begin * a.depth, a.line, a.depth};
    if (a.depth == 1) return {packed_row(rows.begin), packed_line(), 1};
    return {packed_block(rows), 1, rows.size()};
  }

  /// Panels [p][column] of `width()` columns; those beyond the last become 0.
  void pack_b(Range depth) const {
    const MatrixLines& b = product_.b;
    if (b.depth == 1) {
      for (int64_t j = columns_.begin; j < columns_.end; j += width()) {
        product_.kernels.pack_transposed(std::min(width(), columns_.end - j), depth.size(),
                                         b.data + j * b.line + depth.begin, b.line,
                                         packed_panel(j, depth.begin));
      }
      return;
    }
    for (int64_t p = depth.begin; p < depth.end; ++p) {
      for (int64_t j = columns_.begin; j < columns_.end; j += width()) {
        const int64_t count = std::min(width(), columns_.end - j);
        float* const packed = packed_panel(j, p);
        copy_few(b.data + p * b.depth + j, count, packed);
        if (count < width()) std::fill(packed + count, packed + width(), 0.0f);
      }
    }
  }
  float* packed_panel(int64_t column, int64_t p) const {
    return b_room_ + (column - columns_.begin) * depth_.size() + (p - depth_.begin) * width();
  }

  void multiply_block(int64_t block, Range columns) const {
    const MatrixLines& b = product_.b;
    const int64_t ldc = product_.shape.ldc;
    const Range rows = rows_of(block);
    const MatrixLines a = rows_of_a(rows);
    const bool add = product_.beta != 0.0f || depth_.begin > 0;
    const MicroKernels::Multiply kernel = product_.kernels.multiply[rows.size() - 1];
    for (int64_t j = columns.begin; j < columns.end; j += width()) {
      const bool in_place = b_room_ == nullptr;
      const float* const panel =
          in_place ? b.data + j + depth_.begin * b.depth : packed_panel(j, depth_.begin);
      const int64_t b_depth = in_place ? b.depth : width();
      float* const c = product_.c + rows.begin * ldc + j;
      const int64_t count = columns.end - j;
      if (count >= width()) {
        prefetch_c(rows, j + width());
        kernel(depth_.size(), product_.alpha, a, panel, b_depth, c, ldc, add);
        continue;
      }
      alignas(64) float whole[MicroKernels::most_rows * most_width];
      kernel(depth_.size(), product_.alpha, a, panel, b_depth, whole, width(), false);
      for (int64_t i = 0; i < rows.size(); ++i) {
        for (int64_t column = 0; column < count; ++column) {
          const float sum = whole[i * width() + column];
          c[i * ldc + column] = add ? c[i * ldc + column] + sum : sum;
        }
      }
    }
  }

  /// Asks for the panel of C that is written next: else each kernel would end by waiting for memory.
  void prefetch_c(Range rows, int64_t column) const {
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      const float* const c = product_.c + i * product_.shape.ldc + column;
      for (int64_t j = 0; j < width(); j += 16) __builtin_prefetch(c + j, 1);
    }
  }

  /// What C has to hold before the first sum is added to it.
  void scale(Range rows, Range columns) const {
    if (product_.beta == 0.0f || product_.beta == 1.0f) return;
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      float* const c = product_.c + i * product_.shape.ldc;
      for (int64_t j = columns.begin; j < columns.end; ++j) c[j] *= product_.beta;
    }
  }

  const Product& product_;
  Range rows_, columns_, depth_;
  float *a_room_, *b_room_;
  int64_t row_blocks_, block_size_, longer_blocks_;  // so many blocks have one row more than block_size_
};

/// How much is packed at a time.
struct PartSize {
  int64_t rows, columns;
};

/// The whole product, part by part; loop(count, body) calls body(0) to body(count - 1).
template <class Loop>
void multiply_parts(const Product& product, PartSize most, float* a_room, float* b_room,
                    const Epilogue<float>& epilogue, const Loop& loop) {
  const GemmShape& s = product.shape;
  const int64_t depth_parts = std::max<int64_t>(1, ceiling(s.k, depth_block));
  for (int64_t row = 0; row < s.m; row += most.rows) {
    for (int64_t column = 0; column < s.n; column += most.columns) {
      for (int64_t i = 0; i < depth_parts; ++i) {
        const Part part(product, {row, std::min(s.m, row + most.rows)},
                        {column, std::min(s.n, column + most.columns)}, even_part(s.k, depth_parts, i),
                        a_room, b_room);
        if (a_room != nullptr || b_room != nullptr)
          loop(part.slices(), [&](int64_t slice) { part.pack(slice); });
        loop(part.tasks(), [&](int64_t task) { part.multiply(task, epilogue); });
      }
    }
  }
}

/// Whether A has to be packed for so many columns: where a copy costs less than it saves.
bool packs_a(const Product& product, int64_t columns) {
  if (product.a.depth == 1) return conflicts(product.a.line);
  return columns > 2 * product.kernels.columns &&
         (product.shape.k > short_depth || conflicts(product.a.depth));
}

/// Whether B has to be packed for so many rows.
bool packs_b(const Product& product, int64_t rows) {
  return product.b.line != 1 || product.shape.n % product.kernels.columns != 0 || rows > few_rows ||
         conflicts(product.b.depth);
}

}  // namespace

void packed_tile_gemm(const GemmShape& s, float alpha, const float* a, const float* b, float beta, float* c) {
  constexpr PartSize most{256, 256};
  alignas(64) static thread_local float a_room[Part::a_room_size(most.rows)];
  alignas(64) static thread_local float b_room[Part::b_room_size(most.columns)];
  const Product product(s, alpha, a, b, beta, c);
  multiply_parts(product, most, packs_a(product, s.n) ? a_room : nullptr,
                 packs_b(product, s.m) ? b_room : nullptr, {}, [](int64_t count, const auto& body) {
                   for (int64_t i = 0; i < count; ++i) body(i);
                 });
}

void packed_gemm(const GemmShape& s, float alpha, const float* a, const float* b, float beta, float* c,
                 const Epilogue<float>& epilogue) {
  if (s.m * s.n * s.k < least_parallel_work) {
    parallel_tasks(1, [&](int64_t) {
      packed_tile_gemm(s, alpha, a, b, beta, c);
      apply(epilogue, 0, s.m, 0, s.n, c, s.ldc);
    });
    return;
  }
  const Product product(s, alpha, a, b, beta, c);
  const bool pack_a = packs_a(product, s.n);
  // About 6 MiB of each operand at a time; A needs no parts where it is read in place.
  const PartSize most{pack_a ? std::min<int64_t>(s.m, 4096) : s.m, std::min<int64_t>(s.n, 4096)};
  Scratch<float> a_room(pack_a ? Part::a_room_size(most.rows) : 0), b_room(Part::b_room_size(most.columns));
  multiply_parts(product, most, a_room.data(), b_room.data(), epilogue,
                 [](int64_t count, const auto& body) { parallel_tasks(count, body); });
}

namespace {

const MicroKernels* best_kernels() {
  if (const MicroKernels* kernels = avx512_kernels()) return kernels;
  if (const MicroKernels* kernels = avx2_kernels()) return kernels;
  return portable_kernels();
}

const MicroKernels*& chosen_kernels() {
  static const MicroKernels* chosen = best_kernels();
  return chosen;
}

}  // namespace

const MicroKernels& micro_kernels() { return *chosen_kernels(); }
void use_micro_kernels(const MicroKernels& kernels) { chosen_kernels() = &kernels; }

}  // namespace mixgrad
