// Softmax attention on a GPU, by tiles of scores that never leave a multiprocessor. A block owns a tile of
// rows, queries or keys, and goes through the tiles of columns, keys or queries, that belong to them. Tiles
// are 32 x 32 for float and 16 x 16 for double; a warp has whole rows of them. Sums are in fixed order: the
// gradients of the queries and those of the keys are computed by a launch each, which both compute the
// scores. With products in bfloat16, attention_bf16.cu takes over.
//
//   kernel              a block owns           FLOPs for each score    shared memory, in rows of a tile
//   attend              queries of one head    2 dk + 2 dv + 25        2 dk + 2 dv
//   gradients, of q     queries of one head    4 dk + 2 dv + 25        3 dk + 2 dv
//   gradients, of k     keys of one key head   4 dk + 4 dv + 25        3 dk + 3 dv
//
// Bytes moved: a block reads the tiles of columns once, from the L2 cache, and its own rows once.
// Shared memory suffices for heads 256 wide with compute capability 9.0, 192 with 8.0; launch() refuses
// others.
#include <limits>

#include "cuda/kernels/attention.cuh"
#include "cuda/kernels/map.cuh"
#include "tensor/allocator.h"
#include "tensor/kernels/vector_math.h"

namespace mixgrad {

namespace {

constexpr int attention_threads = 256;
template <class T>
constexpr int tile = sizeof(T) == 4 ? 32 : 16;
template <class T>
constexpr int row_step = attention_threads / tile<T>;  // between the rows of a thread
template <class T>
constexpr int thread_rows = tile<T> / row_step<T>;

/// Rows of a tile in shared memory, one element more apart than they are wide: threads that read one column
/// of neighbouring rows read from different banks.
template <class T>
struct Rows {
  T* data;
  int width;

  __device__ T& at(int row, int column) const { return data[row * (width + 1) + column]; }
  __device__ T* end() const { return data + tile<T> * (width + 1); }

  /// Tokens [first, first + tile) of one head; zeros where keeps(token) says no, which are not read.
  template <class Keeps>
  __device__ void load(Heads<const T> x, int64_t b, int64_t first, int64_t head, const Keeps& keeps) const {
    for (int i = threadIdx.x; i < tile<T> * width; i += attention_threads) {
      const int row = i / width;
      const int column = i % width;
      at(row, column) = keeps(first + row) ? x.at(b, first + row, head)[column] : T(0);
    }
  }
};

template <class T>
int64_t shared_bytes(int64_t keys_width, int64_t values_width, int64_t keys_count, int64_t values_count) {
  return static_cast<int64_t>(sizeof(T)) * tile<T> *
         (keys_count * (keys_width + 1) + values_count * (values_width + 1));
}

/// The place of a thread in a tile: a column of it, and the rows first_row + r row_step.
template <class T>
struct Place {
  int column = threadIdx.x % tile<T>;
  int first_row = threadIdx.x / tile<T>;

  __device__ int row(int r) const { return first_row + r * row_step<T>; }

  /// result[r] = a[row(r)] . b[column]
  __device__ void dot(const Rows<T>& a, const Rows<T>& b, T* result) const {
#pragma unroll
    for (int r = 0; r < thread_rows<T>; ++r) result[r] = 0;
    for (int c = 0; c < a.width; ++c) {
      const T value = b.at(column, c);
#pragma unroll
      for (int r = 0; r < thread_rows<T>; ++r) result[r] += a.at(row(r), c) * value;
    }
  }

  /// Calls f(row, column) for the entries of y that belong to this thread.
  template <class F>
  __device__ void for_each(const Rows<T>& y, const F& f) const {
    for (int c = column; c < y.width; c += tile<T>) {
      for (int r = 0; r < thread_rows<T>; ++r) f(row(r), c);
    }
  }

  /// y[i] = factor[i] y[i] + sum of weights[i, j] x[j] over the columns j with seen[i, j] >= 0. What isn't
  /// seen doesn't enter a sum even times 0, for it may be NaN. factor has an entry for each row of this
  /// thread.
  __device__ void add(const T* factor, const Rows<T>& weights, const Rows<T>& seen, const Rows<T>& x,
                      const Rows<T>& y) const {
    for (int c = column; c < y.width; c += tile<T>) {
      T sums[thread_rows<T>] = {};
      for (int j = 0; j < tile<T>; ++j) {
        const T value = x.at(j, c);
#pragma unroll
        for (int r = 0; r < thread_rows<T>; ++r) {
          if (!(seen.at(row(r), j) < 0)) sums[r] += weights.at(row(r), j) * value;
        }
      }
#pragma unroll
      for (int r = 0; r < thread_rows<T>; ++r) y.at(row(r), c) = factor[r] * y.at(row(r), c) + sums[r];
    }
  }
};

/// The values of one row's threads joined, in each of them.
template <class Op, class T>
__device__ T row_reduce(T value) {
  for (int step = tile<T> / 2; step > 0; step /= 2) value = Op::join(value, exchange_lanes(value, step));
  return value;
}

template <class T>
__global__ void attend(Visibility visible, Heads<const T> q, Heads<const T> k, Heads<const T> v, Heads<T> o,
                       T* maximum, T* sum) {
  __shared__ SharedArray<T, tile<T>*(tile<T> + 1)> weights_array;
  const AttentionShape& s = visible.s;
  const Own own = own_tile<Side::queries>(s, tile<T>);
  const int64_t key_head = own.head / (s.heads / s.key_heads);
  const Place<T> place;
  const int dk = static_cast<int>(s.key_dim);
  const int dv = static_cast<int>(s.value_dim);
  const Rows<T> q_rows{dynamic_shared<T>(), dk};
  const Rows<T> k_rows{q_rows.end(), dk};
  const Rows<T> v_rows{k_rows.end(), dv};
  const Rows<T> o_rows{v_rows.end(), dv};
  const Rows<T> weights{weights_array.data(), tile<T>};
  const auto is_key = [&](int64_t key) { return visible.keeps(own.b, key); };
  const auto is_query = [&](int64_t query) { return query < s.queries; };

  q_rows.load(q, own.b, own.first, own.head, is_query);
  place.for_each(o_rows, [&](int row, int c) { o_rows.at(row, c) = 0; });
  T row_max[thread_rows<T>], total[thread_rows<T>], scores[thread_rows<T>], correction[thread_rows<T>];
  for (int r = 0; r < thread_rows<T>; ++r) {
    row_max[r] = std::numeric_limits<T>::lowest();
    total[r] = 0;
  }
  const Range keys = visible.keys_of(own.first, tile<T>);
  for (int64_t first = keys.begin; first < keys.end; first += tile<T>) {
    if (first > keys.begin) __syncthreads();  // until all have used the tiles before
    k_rows.load(k, own.b, first, key_head, is_key);
    v_rows.load(v, own.b, first, key_head, is_key);
    __syncthreads();
    place.dot(q_rows, k_rows, scores);
#pragma unroll
    for (int r = 0; r < thread_rows<T>; ++r) {
      const int64_t query = own.first + place.row(r), key = first + place.column;
      const bool seen = visible.sees(own.b, query, key);
      const T score = T(s.scale) * scores[r] + (seen ? visible.decay<T>(own.b, own.head, query, key) : T(0));
      const T before = row_max[r];
      row_max[r] =
          Maximum::join(before, row_reduce<Maximum>(seen ? score : std::numeric_limits<T>::lowest()));
      const T p = seen ? vector_exp(score - row_max[r]) : T(0);
      // What was summed up so far was relative to the maximum so far.
      correction[r] = vector_exp(before - row_max[r]);
      total[r] = correction[r] * total[r] + row_reduce<Sum>(p);
      weights.at(place.row(r), place.column) = seen ? p : T(-1);
    }
    __syncwarp();  // a row's weights are those of one warp
    place.add(correction, weights, weights, v_rows, o_rows);
  }
#pragma unroll
  for (int r = 0; r < thread_rows<T>; ++r) {
    const int64_t query = own.first + place.row(r);
    if (query >= s.queries) continue;
    const int64_t row = (own.b * s.heads + own.head) * s.queries + query;
    for (int c = place.column; c < dv; c += tile<T>) {
      o.at(own.b, query, own.head)[c] = inverse(total[r]) * o_rows.at(place.row(r), c);
    }
    if (place.column == 0) maximum[row] = row_max[r];
    if (place.column == 0) sum[row] = total[r];
  }
}

}  // namespace

template <class T>
void attention_forward(Cuda device, const AttentionShape& s, Heads<const T> q, Heads<const T> k,
                       Heads<const T> v, const int32_t* key_mask, Heads<T> o, T* maximum, T* sum) {
  const unsigned blocks = blocks_of(s.batch, s.heads, s.queries, tile<T>);
  if (blocks == 0) return;
  const Visibility visible(s, key_mask);
  if constexpr (std::is_same_v<T, float>) {
    if (attends_in_bf16(s)) return attend_in_bf16(device, visible, q, k, v, o, maximum, sum);
  }
  launch<attend<T>>(device, {blocks, attention_threads, shared_bytes<T>(s.key_dim, s.value_dim, 2, 2)},
                    visible, q, k, v, o, maximum, sum);
}

namespace {

/// A warp has a query: delta = d_o . o; slope = inverse_sum, but 0 where it sees one key: that has all the
/// weight whatever its score, and rounding in d_o v^T - delta must not say otherwise.
template <class T>
__global__ void row_statistics(Visibility visible, Heads<const T> o, Heads<const T> d_o, const T* maximum,
                               const T* sum, RowStatistics<T>* rows) {
  const AttentionShape& s = visible.s;
  const int64_t row = blockIdx.x * int64_t{blockDim.x / 32} + threadIdx.x / 32;
  if (row >= s.batch * s.heads * s.queries) return;
  const int64_t query = row % s.queries;
  const int64_t head = row / s.queries % s.heads;
  const int64_t b = row / s.queries / s.heads;
  const int lane = threadIdx.x % 32;
  T dot = 0;
  for (int64_t c = lane; c < s.value_dim; c += 32) dot += o.at(b, query, head)[c] * d_o.at(b, query, head)[c];
  int64_t keys = 0;
  const Range range = visible.keys_of(query, 1);
  for (int64_t key = range.begin + lane; key < range.end; key += 32) keys += visible.sees(b, query, key);
  dot = warp_reduce<Sum>(dot);
  keys = warp_reduce<Sum>(keys);
  if (lane != 0) return;
  const T inverse_sum = inverse(sum[row]);
  rows[row] = {maximum[row], inverse_sum, keys == 1 ? T(0) : inverse_sum, dot};
}

template <class T, Side side>
__global__ void gradients(Visibility visible, Saved<T> saved, Heads<T> da, Heads<T> db, double* score_sums) {
  constexpr bool own_keys = side == Side::keys;
  __shared__ SharedArray<T, tile<T>*(tile<T> + 1)> p_array;
  __shared__ SharedArray<T, tile<T>*(tile<T> + 1)> ds_array;
  const AttentionShape& s = visible.s;
  const Own own = own_tile<side>(s, tile<T>);
  const Others others = others_of<side>(visible, own, tile<T>);
  const OperandPair<T> own_operands = own_keys ? saved.keys : saved.queries;
  const OperandPair<T> other_operands = own_keys ? saved.queries : saved.keys;
  const auto is_own = [&](int64_t token) {
    return own_keys ? visible.keeps(own.b, token) : token < s.queries;
  };
  const auto is_other = [&](int64_t token) {
    return own_keys ? token < s.queries : visible.keeps(own.b, token);
  };
  const Place<T> place;
  const int a_width = static_cast<int>(s.key_dim);
  const int b_width = static_cast<int>(s.value_dim);
  const Rows<T> own_a{dynamic_shared<T>(), a_width};
  const Rows<T> other_a{own_a.end(), a_width};
  const Rows<T> da_rows{other_a.end(), a_width};
  const Rows<T> own_b{da_rows.end(), b_width};
  const Rows<T> other_b{own_b.end(), b_width};
  const Rows<T> db_rows{other_b.end(), b_width};
  const Rows<T> p{p_array.data(), tile<T>};
  const Rows<T> ds{ds_array.data(), tile<T>};

  own_a.load(own_operands.a, own.b, own.first, own.head, is_own);
  own_b.load(own_operands.b, own.b, own.first, own.head, is_own);
  place.for_each(da_rows, [&](int row, int c) { da_rows.at(row, c) = 0; });
  if constexpr (own_keys) place.for_each(db_rows, [&](int row, int c) { db_rows.at(row, c) = 0; });
  T qk[thread_rows<T>], dov[thread_rows<T>], ones[thread_rows<T>];
  for (T& one : ones) one = 1;
  for (int64_t head = others.begin_head; head < others.end_head; ++head) {
    T ds_sums[thread_rows<T>] = {};  // of this thread's column
    for (int64_t first = others.tokens.begin; first < others.tokens.end; first += tile<T>) {
      other_a.load(other_operands.a, own.b, first, head, is_other);
      other_b.load(other_operands.b, own.b, first, head, is_other);
      __syncthreads();
      place.dot(own_a, other_a, qk);
      place.dot(own_b, other_b, dov);
#pragma unroll
      for (int r = 0; r < thread_rows<T>; ++r) {
        const int64_t mine = own.first + place.row(r);
        const int64_t theirs = first + place.column;
        const int64_t query = own_keys ? theirs : mine, key = own_keys ? mine : theirs;
        const int64_t query_head = own_keys ? head : own.head;
        p.at(place.row(r), place.column) = -1;  // says that it isn't seen
        if (!visible.sees(own.b, query, key)) continue;
        const RowStatistics<T> row = saved.row(s, own.b, query_head, query);
        const T score = T(s.scale) * qk[r] + visible.decay<T>(own.b, query_head, query, key);
        const T e = vector_exp(score - row.maximum);
        p.at(place.row(r), place.column) = row.inverse_sum * e;
        ds.at(place.row(r), place.column) = row.slope * e * (dov[r] - row.delta);
        ds_sums[r] += row.slope * e * (dov[r] - row.delta);
      }
      __syncwarp();  // a row's entries are those of one warp
      if constexpr (own_keys) place.add(ones, p, p, other_b, db_rows);
      place.add(ones, ds, p, other_a, da_rows);
      __syncthreads();  // all have used the tiles
    }
    if constexpr (own_keys) {
      if (score_sums == nullptr) continue;
      for (int r = 0; r < thread_rows<T>; ++r) {
        const int64_t key = own.first + place.row(r);
        const T total = row_reduce<Sum>(ds_sums[r]);
        if (place.column == 0 && key < s.keys) score_sums[(own.b * s.heads + head) * s.keys + key] = total;
      }
    }
  }
  const int64_t tokens = own_keys ? s.keys : s.queries;
  place.for_each(da_rows, [&](int row, int c) {
    if (own.first + row >= tokens) return;
    da.at(own.b, own.first + row, own.head)[c] = T(s.scale) * da_rows.at(row, c);
  });
  if constexpr (own_keys) {
    place.for_each(db_rows, [&](int row, int c) {
      if (own.first + row >= tokens) return;
      db.at(own.b, own.first + row, own.head)[c] = db_rows.at(row, c);
    });
  }
}

/// The gradients of the own side's operands; db is of keys alone.
template <class T, Side side>
void launch_gradients(const Cuda& device, const Visibility& visible, const Saved<T>& saved, Heads<T> da,
                      Heads<T> db = {}, double* score_sums = nullptr) {
  const AttentionShape& s = visible.s;
  const bool keys = side == Side::keys;
  const unsigned blocks =
      blocks_of(s.batch, keys ? s.key_heads : s.heads, keys ? s.keys : s.queries, tile<T>);
  if (blocks == 0) return;
  if constexpr (std::is_same_v<T, float>) {
    if (attends_in_bf16(s)) return gradients_in_bf16<side>(device, visible, saved, da, db);
  }
  launch<gradients<T, side>>(
      device, {blocks, attention_threads, shared_bytes<T>(s.key_dim, s.value_dim, 3, keys ? 3 : 2)}, visible,
      saved, da, db, score_sums);
}

}  // namespace

template <class T>
void attention_backward(Cuda device, const AttentionShape& s, Heads<const T> q, Heads<const T> k,
                        Heads<const T> v, const int32_t* key_mask, Heads<const T> o, const T* maximum,
                        const T* sum, Heads<const T> d_o, Heads<T> dq, Heads<T> dk, Heads<T> dv,
                        double* score_sums) {
  const Visibility visible(s, key_mask);
  const int64_t rows = s.batch * s.heads * s.queries;
  Scratch<RowStatistics<T>> statistics(rows, device);
  if (rows > 0) {
    launch<row_statistics<T>>(device, {blocks_for(rows, attention_threads / 32), attention_threads}, visible,
                              o, d_o, maximum, sum, statistics.data());
  }
  const Saved<T> saved{{q, d_o}, {k, v}, statistics.data()};
  launch_gradients<T, Side::queries>(device, visible, saved, dq);
  launch_gradients<T, Side::keys>(device, visible, saved, dk, dv, score_sums);
}

void document_begins(Cuda device, int64_t batch, int64_t length, const int32_t* documents, int64_t* begins) {
  map(device, batch * length, [=] __device__(int64_t i) {
    int64_t begin = i % length;
    while (begin > 0 && documents[i - i % length + begin] == 0) --begin;
    begins[i] = begin;
  });
}

// A thread has a head of a sequence, and adds up in the order of its tokens.
template <class T>
void attention_decay_forward(Cuda device, int64_t batch, int64_t length, int64_t heads, const T* log_decay,
                             const int64_t* begins, double* decay) {
  map(device, batch * heads, [=] __device__(int64_t row) {
    const int64_t b = row / heads, head = row % heads;
    double sum = 0;
    for (int64_t t = 0; t < length; ++t) {
      const bool first = t == 0 || (begins != nullptr && begins[b * length + t] == t);
      sum = first ? 0 : sum + log_decay[(b * length + t) * heads + head];
      decay[row * length + t] = sum;
    }
  });
}

template <class T>
void attention_decay_backward(Cuda device, int64_t batch, int64_t length, int64_t heads,
                              const double* score_sums, const int64_t* begins, T* dlog_decay) {
  map(device, batch * heads, [=] __device__(int64_t row) {
    const int64_t b = row / heads, head = row % heads;
    double sum = 0;
    for (int64_t t = 0; t < length; ++t) {
      if (begins != nullptr && begins[b * length + t] == t) sum = 0;
      dlog_decay[(b * length + t) * heads + head] = static_cast<T>(sum);
      sum += score_sums[row * length + t];
    }
  });
}

#define INSTANTIATE(T)                                                                                      \
  template void attention_forward<T>(Cuda, const AttentionShape&, Heads<const T>, Heads<const T>,           \
                                     Heads<const T>, const int32_t*, Heads<T>, T*, T*);                     \
  template void attention_backward<T>(Cuda, const AttentionShape&, Heads<const T>, Heads<const T>,          \
                                      Heads<const T>, const int32_t*, Heads<const T>, const T*, const T*,   \
                                      Heads<const T>, Heads<T>, Heads<T>, Heads<T>, double*);               \
  template void attention_decay_forward<T>(Cuda, int64_t, int64_t, int64_t, const T*, const int64_t*,       \
                                           double*);                                                        \
  template void attention_decay_backward<T>(Cuda, int64_t, int64_t, int64_t, const double*, const int64_t*, \
                                            T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
