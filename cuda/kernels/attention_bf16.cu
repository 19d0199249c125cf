// Softmax attention on tensor cores: tiles are rounded to bfloat16 on their way into shared memory, products
// are summed in float, and the softmax is float. Heads are padded with zeros to 16, 32, 64 or 128.
//
//   kernel                 a block owns            FLOPs for each score    shared memory
//   attend_bf16            128 queries of a head   2 dk + 2 dv + 25        256 rows
//   gradients_bf16, of q   128 queries of a head   4 dk + 2 dv + 25        384 rows
//   gradients_bf16, of k   128 keys of a head      4 dk + 4 dv + 25        384 rows, 1 KB
//
// A row is 2 (padded width + 8) bytes. Of a block's eight warps each has 16 of its rows, and goes with all
// others through tiles of 64 rows of the other kind. Their scores are where the product leaves them, in
// registers (tile_mma.cuh), and from there are the left operand of the next product. Bytes moved: 64 rows of
// float are read for 128 rows of scores, mostly from the L2 cache.
//
// Unlike in attention.cu, a key or value that is NaN or infinite reaches all queries of its tile, those that
// do not see it, too: 0 times it is NaN.
#include <limits>
#include <type_traits>

#include "cuda/kernels/attention.cuh"
#include "cuda/kernels/tile_mma.cuh"
#include "tensor/kernels/gemm.h"

namespace mixgrad {

namespace {

constexpr int warps = 8;
constexpr int own_rows = warps * tile_side;
constexpr int other_rows = 64;
constexpr int other_tiles = other_rows / tile_side;
constexpr int64_t widest = 128;

/// Tokens of one head, rounded, in shared memory.
template <int width>
struct TileRows {
  static constexpr int stride = tile_stride(width);

  Bfloat16* data;

  __device__ Bfloat16* at(int row, int column) const { return data + row * stride + column; }

  /// `count` tokens from `first` on; zeros beyond the head's width, and where keeps(token) says no, which are
  /// not read.
  template <class Keeps>
  __device__ void load(int count, Heads<const float> x, int64_t b, int64_t first, int64_t head,
                       const Keeps& keeps) const {
    for (int i = threadIdx.x; i < count * width / 2; i += warps * 32) {
      const int row = i / (width / 2);
      const int column = i % (width / 2) * 2;
      const float* values = x.at(b, first + row, head);
      const bool kept = keeps(first + row);
      const float even = kept && column < x.head_size ? values[column] : 0;
      const float odd = kept && column + 1 < x.head_size ? values[column + 1] : 0;
      *reinterpret_cast<__nv_bfloat162*>(at(row, column)) = __floats2bfloat162_rn(even, odd);
    }
  }
};

/// e^x for x <= 0, to a few units in the last place.
__device__ inline float quick_exp(float x) { return exp2f(1.44269504f * x); }

/// Joins the values of the four lanes that share a row.
template <class Op>
__device__ float row_reduce(float value) {
  value = Op::join(value, exchange_lanes(value, 1));
  return Op::join(value, exchange_lanes(value, 2));
}

/// The softmax so far of a lane's two rows.
struct RunningSoftmax {
  float maximum[2] = {std::numeric_limits<float>::lowest(), std::numeric_limits<float>::lowest()};
  float total[2] = {};

  /// Turns scores into exp(score - maximum). What was summed up so far was relative to the maximum so far,
  /// and has to be multiplied by `correction`.
  __device__ void add(SumTile* scores, float* correction) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = maximum[r];
      float largest = before;
      for_row(r, scores, [&](float& score) { largest = Maximum::join(largest, score); });
      maximum[r] = row_reduce<Maximum>(largest);
      correction[r] = quick_exp(before - maximum[r]);
      float sum = 0;
      for_row(r, scores, [&](float& score) {
        score = quick_exp(score - maximum[r]);
        sum += score;
      });
      total[r] = correction[r] * total[r] + row_reduce<Sum>(sum);
    }
  }

 private:
  /// Calls f for this lane's scores of its row r.
  template <class F>
  __device__ static void for_row(int r, SumTile* scores, const F& f) {
#pragma unroll
    for (int tile = 0; tile < other_tiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 4; ++j) f(scores[tile].values[2 * r + j % 2 + j / 2 * 4]);
    }
  }
};

/// sums += rows of `own` from own_row on, times the transpose of 16 rows of `other`.
template <int width>
__device__ void add_scores(const TileRows<width>& own, int own_row, const TileRows<width>& other,
                           int other_row, SumTile& sums) {
#pragma unroll
  for (int column = 0; column < width; column += tile_side) {
    sums.add_product(left_tile(own.at(own_row, column), own.stride),
                     transposed_right_tile(other.at(other_row, column), other.stride));
  }
}

/// sums[c] += weights times columns 16 c to 16 c + 15 of 16 rows of x.
template <int width>
__device__ void add_weighted(const LeftTile& weights, const TileRows<width>& x, int row, SumTile* sums) {
#pragma unroll
  for (int column = 0; column < width; column += tile_side) {
    sums[column / tile_side].add_product(weights, right_tile(x.at(row, column), x.stride));
  }
}

/// Writes factor(r) sums, row r being a lane's first or second, to the tokens of y from `first` on.
template <int width, class Factor>
__device__ void store(const SumTile* sums, const Heads<float>& y, int64_t b, int64_t first, int64_t tokens,
                      int64_t head, const Factor& factor) {
#pragma unroll
  for (int tile = 0; tile < width / tile_side; ++tile) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int64_t token = first + SumTile::row(i);
      const int column = tile * tile_side + SumTile::column(i);
      if (token >= tokens || column >= y.head_size) continue;
      y.at(b, token, head)[column] = factor(i / 2 % 2) * sums[tile].values[i];
    }
  }
}

template <int width>
__global__ void __launch_bounds__(warps * 32, 1)
    attend_bf16(Visibility visible, Heads<const float> q, Heads<const float> k, Heads<const float> v,
                Heads<float> o, float* maximum, float* sum) {
  const AttentionShape& s = visible.s;
  const Own own = own_tile<Side::queries>(s, own_rows);
  const int64_t key_head = own.head / (s.heads / s.key_heads);
  const int own_row = threadIdx.x / 32 * tile_side;
  const int64_t first_query = own.first + own_row;
  const TileRows<width> q_rows{dynamic_shared<Bfloat16>()};
  const TileRows<width> k_rows{q_rows.at(own_rows, 0)};
  const TileRows<width> v_rows{k_rows.at(other_rows, 0)};
  const auto is_key = [&](int64_t key) { return visible.keeps(own.b, key); };

  q_rows.load(own_rows, q, own.b, own.first, own.head, [&](int64_t query) { return query < s.queries; });
  SumTile o_sums[width / tile_side];
  RunningSoftmax softmax;
  const Range keys = visible.keys_of(own.first, own_rows);
  for (int64_t first = keys.begin; first < keys.end; first += other_rows) {
    k_rows.load(other_rows, k, own.b, first, key_head, is_key);
    v_rows.load(other_rows, v, own.b, first, key_head, is_key);
    __syncthreads();
    SumTile scores[other_tiles];
    const bool all_seen = visible.all_see_all(first_query, tile_side, first, other_rows);
#pragma unroll
    for (int tile = 0; tile < other_tiles; ++tile) {
      add_scores(q_rows, own_row, k_rows, tile * tile_side, scores[tile]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& score = scores[tile].values[i];
        const int64_t key = first + tile * tile_side + SumTile::column(i);
        const bool seen = all_seen || visible.sees(own.b, first_query + SumTile::row(i), key);
        score = seen ? static_cast<float>(s.scale) * score : -std::numeric_limits<float>::infinity();
      }
    }
    float correction[2];
    softmax.add(scores, correction);
#pragma unroll
    for (SumTile& sums : o_sums) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums.values[i] *= correction[i / 2 % 2];
    }
#pragma unroll
    for (int tile = 0; tile < other_tiles; ++tile) {
      add_weighted(scores[tile].rounded(), v_rows, tile * tile_side, o_sums);
    }
    __syncthreads();  // all have used the tiles
  }
  store<width>(o_sums, o, own.b, first_query, s.queries, own.head,
               [&](int r) { return inverse(softmax.total[r]); });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t query = first_query + SumTile::row(2 * r);
    if (threadIdx.x % 4 != 0 || query >= s.queries) continue;
    const int64_t row = (own.b * s.heads + own.head) * s.queries + query;
    maximum[row] = softmax.maximum[r];
    sum[row] = softmax.total[r];
  }
}

/// The statistics of a query; zeros behind the last one.
__device__ inline RowStatistics<float> statistics(const Visibility& visible, const Saved<float>& saved,
                                                  int64_t b, int64_t head, int64_t query) {
  if (query >= visible.s.queries) return {0, 0, 0, 0};
  return saved.row(visible.s, b, head, query);
}

template <int width, Side side>
__global__ void __launch_bounds__(warps * 32, 1)
    gradients_bf16(Visibility visible, Saved<float> saved, Heads<float> da, Heads<float> db) {
  constexpr bool own_keys = side == Side::keys;
  __shared__ SharedArray<RowStatistics<float>, other_rows> other_statistics;
  const AttentionShape& s = visible.s;
  const Own own = own_tile<side>(s, own_rows);
  const Others others = others_of<side>(visible, own, own_rows);
  const OperandPair<float> own_operands = own_keys ? saved.keys : saved.queries;
  const OperandPair<float> other_operands = own_keys ? saved.queries : saved.keys;
  const auto is_own = [&](int64_t token) {
    return own_keys ? visible.keeps(own.b, token) : token < s.queries;
  };
  const auto is_other = [&](int64_t token) {
    return own_keys ? token < s.queries : visible.keeps(own.b, token);
  };
  const int own_row = threadIdx.x / 32 * tile_side;
  const int64_t first_own = own.first + own_row;
  const TileRows<width> own_a{dynamic_shared<Bfloat16>()};
  const TileRows<width> own_b{own_a.at(own_rows, 0)};
  const TileRows<width> other_a{own_b.at(own_rows, 0)};
  const TileRows<width> other_b{other_a.at(other_rows, 0)};

  own_a.load(own_rows, own_operands.a, own.b, own.first, own.head, is_own);
  own_b.load(own_rows, own_operands.b, own.b, own.first, own.head, is_own);
  RowStatistics<float> own_statistics[2];
  if (!own_keys) {
    for (int r = 0; r < 2; ++r) {
      own_statistics[r] = statistics(visible, saved, own.b, own.head, first_own + SumTile::row(2 * r));
    }
  }
  SumTile da_sums[width / tile_side];
  SumTile db_sums[own_keys ? width / tile_side : 1];
  for (int64_t head = others.begin_head; head < others.end_head; ++head) {
    for (int64_t first = others.tokens.begin; first < others.tokens.end; first += other_rows) {
      other_a.load(other_rows, other_operands.a, own.b, first, head, is_other);
      other_b.load(other_rows, other_operands.b, own.b, first, head, is_other);
      if (own_keys && threadIdx.x < other_rows) {
        other_statistics[threadIdx.x] = statistics(visible, saved, own.b, head, first + threadIdx.x);
      }
      __syncthreads();
      for (int other_row = 0; other_row < other_rows; other_row += tile_side) {
        const int64_t query = own_keys ? first + other_row : first_own;
        const int64_t key = own_keys ? first_own : first + other_row;
        const bool all_seen = visible.all_see_all(query, tile_side, key, tile_side);
        SumTile p;   // first q . k
        SumTile ds;  // first d_o . v
        add_scores(own_a, own_row, other_a, other_row, p);
        add_scores(own_b, own_row, other_b, other_row, ds);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int mine = SumTile::row(i);
          const int theirs = SumTile::column(i);
          const bool seen = all_seen || visible.sees(own.b, query + (own_keys ? theirs : mine),
                                                     key + (own_keys ? mine : theirs));
          const RowStatistics<float> row =
              own_keys ? other_statistics[other_row + theirs] : own_statistics[i / 2 % 2];
          const float score = static_cast<float>(s.scale) * p.values[i];
          const float e = seen ? quick_exp(score - row.maximum) : 0;
          p.values[i] = row.inverse_sum * e;
          ds.values[i] = row.slope * e * (ds.values[i] - row.delta);
        }
        add_weighted(ds.rounded(), other_a, other_row, da_sums);
        if constexpr (own_keys) add_weighted(p.rounded(), other_b, other_row, db_sums);
      }
      __syncthreads();  // all have used the tiles
    }
  }
  const int64_t tokens = own_keys ? s.keys : s.queries;
  store<width>(da_sums, da, own.b, first_own, tokens, own.head,
               [&](int) { return static_cast<float>(s.scale); });
  if constexpr (own_keys)
    store<width>(db_sums, db, own.b, first_own, tokens, own.head, [](int) { return 1.0f; });
}

/// Calls f with the padded width of the heads, a constant.
template <class F>
void with_padded_width(const AttentionShape& s, const F& f) {
  const int64_t width = std::max(s.key_dim, s.value_dim);
  if (width <= 16) return f(std::integral_constant<int, 16>{});
  if (width <= 32) return f(std::integral_constant<int, 32>{});
  if (width <= 64) return f(std::integral_constant<int, 64>{});
  f(std::integral_constant<int, 128>{});
}

int64_t row_bytes(int64_t rows, int width) {
  return rows * tile_stride(width) * static_cast<int64_t>(sizeof(Bfloat16));
}

}  // namespace

bool attends_in_bf16(const AttentionShape& s) {
  const bool fits = s.decay == nullptr && std::max(s.key_dim, s.value_dim) <= widest;
  return matrix_precision() == MatrixPrecision::bfloat16 && fits;
}

void attend_in_bf16(const Cuda& device, const Visibility& visible, Heads<const float> q, Heads<const float> k,
                    Heads<const float> v, Heads<float> o, float* maximum, float* sum) {
  const AttentionShape& s = visible.s;
  const unsigned blocks = blocks_of(s.batch, s.heads, s.queries, own_rows);
  with_padded_width(s, [&](auto width) {
    launch<attend_bf16<width>>(device, {blocks, warps * 32, row_bytes(own_rows + 2 * other_rows, width)},
                               visible, q, k, v, o, maximum, sum);
  });
}

template <Side side>
void gradients_in_bf16(const Cuda& device, const Visibility& visible, const Saved<float>& saved,
                       Heads<float> da, Heads<float> db) {
  const AttentionShape& s = visible.s;
  const bool keys = side == Side::keys;
  const unsigned blocks =
      blocks_of(s.batch, keys ? s.key_heads : s.heads, keys ? s.keys : s.queries, own_rows);
  with_padded_width(s, [&](auto width) {
    launch<gradients_bf16<width, side>>(device,
                                        {blocks, warps * 32, row_bytes(2 * own_rows + 2 * other_rows, width)},
                                        visible, saved, da, db);
  });
}
template void gradients_in_bf16<Side::queries>(const Cuda&, const Visibility&, const Saved<float>&,
                                               Heads<float>, Heads<float>);
template void gradients_in_bf16<Side::keys>(const Cuda&, const Visibility&, const Saved<float>&, Heads<float>,
                                            Heads<float>);

}  // namespace mixgrad
