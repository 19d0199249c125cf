// Products of matrices by tiles. A block of 256 threads owns a tile of the result, in registers; slabs of
// both operands, 16 deep, go through shared memory. A kernel says what its operands are element by element,
// so that factors, masks and transposes are applied on the way, once for each element that is loaded.
//
// Shared memory: 2 x 16 x 65 elements, 8 KB for float and 16 KB for double, whatever the sizes. Each sum runs
// over the depth from first to last in one thread.
#pragma once

#include "cuda/kernels/block.cuh"

namespace mixgrad {

constexpr int tile_group = 16;  // rows or columns; a group of each has 256 elements, one a thread
constexpr int tile_threads = tile_group * tile_group;
constexpr int tile_size = 4 * tile_group;  // rows and columns of a tile, unless it says otherwise
constexpr int slab_depth = 16;
constexpr int slab_row = tile_size + 1;  // an odd distance: writes down a column go to different banks

/// An operand by its elements: (row, depth) on the left of a product, (depth, column) on the right. Elements
/// next to each other in memory lie along the depth, or across it: so do the threads that load them.
template <class F>
struct AlongDepth {
  F element;
  static constexpr bool along = true;
  __device__ explicit AlongDepth(const F& f) : element(f) {}
};
template <class F>
struct AcrossDepth {
  F element;
  static constexpr bool along = false;
  __device__ explicit AcrossDepth(const F& f) : element(f) {}
};

/// Where a left operand has zeros: nowhere, above its diagonal, or below it.
enum class Triangle { none, lower, upper };

/// The two slabs of the block, one behind the other.
template <class T>
__device__ T* tile_slabs() {
  __shared__ SharedArray<T, 2 * slab_depth * slab_row> slabs;
  return slabs.data();
}

/// A tile [16 thread_rows, 16 thread_columns] of a matrix; only what lies inside the matrix is computed.
/// Element (i, j) of it belongs to the thread 16 (i % 16) + j % 16. Sums are made in Sum. All threads of the
/// block must call its functions together.
template <class T, int thread_rows = 4, int thread_columns = 4, class Sum = T>
class Tile {
 public:
  static constexpr int rows = tile_group * thread_rows;
  static constexpr int columns = tile_group * thread_columns;

  /// All zero. The tile begins at (row, column); the matrix ends before row_end and column_end.
  __device__ Tile(int row, int row_end, int column, int column_end)
      : row_(row), row_end_(row_end), column_(column), column_end_(column_end) {}

  /// += left right, summed over [begin, end). Unless that is empty, it starts with a barrier, so that the
  /// operands may be what the block has just written. With a triangle, the zeros of `left` are left out by 16
  /// rows and 16 of the depth: that saves three eighths of a product of 64, and a NaN in `right` stays away
  /// from rows further off. begin must then be a multiple of 16, and for an upper triangle the tile's row.
  template <Triangle triangle = Triangle::none, class Left, class Right>
  __device__ void add_product(int begin, int end, const Left& left, const Right& right) {
    T* const a = tile_slabs<T>();
    T* const b = a + slab_depth * slab_row;
    for (int first = begin; first < end; first += slab_depth) {
      const int depth = min(slab_depth, end - first);
      __syncthreads();  // until all have used the slabs before
      load<rows, Left::along>(row_, row_end_, first, depth, a,
                              [&](int i, int p) { return left.element(i, p); });
      load<columns, Right::along>(column_, column_end_, first, depth, b,
                                  [&](int j, int p) { return right.element(p, j); });
      __syncthreads();
      const int groups_before = (first - row_) / tile_group;  // of 16 rows, before the slab's diagonal
      if (triangle == Triangle::lower)
        multiply(depth, max(0, groups_before), thread_rows, a, b);
      else if (triangle == Triangle::upper)
        multiply(depth, 0, groups_before + 1, a, b);
      else
        multiply(depth, 0, thread_rows, a, b);
    }
  }

  /// Calls f(i, j, sum) for the elements of this thread, which f may change.
  template <class F>
  __device__ void for_each(const F& f) {
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) {
#pragma unroll
      for (int c = 0; c < thread_columns; ++c) {
        if (row(r) < row_end_ && column(c) < column_end_) f(row(r), column(c), sums_[r][c]);
      }
    }
  }

  /// Adds up the tile's part of each row: store(i, the sum over j of term(i, j, sum)), by one thread a row.
  template <class Term, class Store>
  __device__ void sum_rows(const Term& term, const Store& store) const {
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) {
      T total = 0;
#pragma unroll
      for (int c = 0; c < thread_columns; ++c) {
        if (row(r) < row_end_ && column(c) < column_end_) total += term(row(r), column(c), sums_[r][c]);
      }
      for (int step = tile_group / 2; step > 0; step /= 2) total += exchange_lanes(total, step);
      if (threadIdx.x % tile_group == 0 && row(r) < row_end_) store(row(r), total);
    }
  }

  /// += a tile at the same place.
  __device__ void add(const Tile& other) {
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) {
#pragma unroll
      for (int c = 0; c < thread_columns; ++c) sums_[r][c] += other.sums_[r][c];
    }
  }
  /// A group of its 16 rows += a tile of as many.
  __device__ void add_to_group(int group, const Tile<T, 1, thread_columns, Sum>& other) {
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) {
      if (r != group) continue;  // sums_[group] would not be in registers
#pragma unroll
      for (int c = 0; c < thread_columns; ++c) sums_[r][c] += other.sums_[0][c];
    }
  }

 private:
  template <class, int, int, class>
  friend class Tile;

  __device__ int row(int r) const { return row_ + threadIdx.x / tile_group + r * tile_group; }
  __device__ int column(int c) const { return column_ + threadIdx.x % tile_group + c * tile_group; }

  /// slab[p, i] = element(first_i + i, first + p); zero outside the matrix.
  template <int count, bool along, class F>
  __device__ static void load(int first_i, int end_i, int first, int depth, T* slab, const F& element) {
#pragma unroll
    for (int e = threadIdx.x; e < count * slab_depth; e += tile_threads) {
      const int i = along ? e / slab_depth : e % count;
      const int p = along ? e % slab_depth : e / count;
      const bool inside = first_i + i < end_i && p < depth;
      slab[p * slab_row + i] = inside ? element(first_i + i, first + p) : T(0);
    }
  }

  /// The groups [begin_group, end_group) of 16 rows += a^T b
  __device__ void multiply(int depth, int begin_group, int end_group, const T* a, const T* b) {
    if (row(0) >= row_end_ || column(0) >= column_end_) return;
    a += threadIdx.x / tile_group;
    b += threadIdx.x % tile_group;
#pragma unroll 4
    for (int p = 0; p < depth; ++p) {
      Sum b_values[thread_columns];
#pragma unroll
      for (int c = 0; c < thread_columns; ++c) b_values[c] = b[p * slab_row + c * tile_group];
#pragma unroll
      for (int r = 0; r < thread_rows; ++r) {
        if (r < begin_group || r >= end_group) continue;
        const Sum a_value = a[p * slab_row + r * tile_group];
#pragma unroll
        for (int c = 0; c < thread_columns; ++c) sums_[r][c] += a_value * b_values[c];
      }
    }
  }

  int row_, row_end_;
  int column_, column_end_;
  Sum sums_[thread_rows][thread_columns] = {};
};

}  // namespace mixgrad
