// Softmax attention on a GPU, by tiles of scores that never leave a multiprocessor. A block owns a tile of
// rows, queries or keys, and goes through the tiles of columns, keys or queries, that belong to them. Tiles
// are 32 x 32 for float and 16 x 16 for double; a warp has whole rows of them. Sums are in fixed order: the
// gradients of the queries and those of the keys are computed by a kernel each, which both compute the
// scores.
//
//   kernel              a block owns           FLOPs for each score    shared memory, in rows of a tile
//   attend              queries of one head    2 dk + 2 dv + 25        2 dk + 2 dv
//   query_gradients     queries of one head    4 dk + 2 dv + 25        3 dk + 2 dv
//   key_gradients       keys of one key head   4 dk + 4 dv + 25        3 dk + 3 dv
//
// Bytes moved: a block reads the tiles of columns once, from the L2 cache, and its own rows once.
// Shared memory suffices for heads 256 wide with compute capability 9.0, 192 with 8.0; launch() refuses
// others.
#include "tensor/kernels/attention.h"

#include <limits>

#include "cuda/device_code.h"
#include "cuda/kernels/block.cuh"
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

struct Range {
  int64_t begin, end;
};

/// Who sees whom.
struct Visibility {
  AttentionShape s;
  int64_t window;
  const int32_t* key_mask;

  Visibility(const AttentionShape& shape, const int32_t* mask)
      : s(shape), window(shape.queries + shape.keys), key_mask(mask) {
    if (s.window > 0) window = std::min(window, s.window);
  }

  __device__ static int64_t limit(int64_t x, int64_t most) { return max(int64_t{0}, min(x, most)); }

  __device__ bool keeps(int64_t b, int64_t key) const {
    return key < s.keys && (key_mask == nullptr || key_mask[b * s.keys + key] != 0);
  }
  __device__ bool sees(int64_t b, int64_t query, int64_t key) const {
    const int64_t newest = query + s.keys - s.queries;
    const bool in_window = !s.causal || (key <= newest && key > newest - window);
    return in_window && query < s.queries && keeps(b, key);
  }
  /// The keys that some of `count` queries see if the mask keeps them.
  __device__ Range keys_of(int64_t first, int64_t count) const {
    if (!s.causal) return {0, s.keys};
    const int64_t newest = first + s.keys - s.queries;
    return {limit(newest + 1 - window, s.keys), limit(newest + count, s.keys)};
  }
  /// The queries that see some of `count` keys.
  __device__ Range queries_of(int64_t first, int64_t count) const {
    if (!s.causal) return {0, s.queries};
    const int64_t oldest = first + s.queries - s.keys;
    return {limit(oldest, s.queries), limit(oldest + count - 1 + window, s.queries)};
  }
};

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

/// 1 / sum; 0 for the sum of nothing.
template <class T>
__device__ T inverse(T sum) {
  return sum == 0 ? T(0) : 1 / sum;
}

/// The tile of rows that a block owns, of one head.
template <class T>
struct Own {
  int64_t b, head, first;

  __device__ Own(int64_t heads, int64_t tokens) {
    const int64_t tiles = (tokens + tile<T> - 1) / tile<T>;
    first = blockIdx.x % tiles * tile<T>;
    head = blockIdx.x / tiles % heads;
    b = blockIdx.x / tiles / heads;
  }
};

template <class T>
unsigned blocks_of(int64_t batch, int64_t heads, int64_t tokens) {
  return blocks_for(batch * heads * ((tokens + tile<T> - 1) / tile<T>), 1);
}

template <class T>
__global__ void attend(Visibility visible, Heads<const T> q, Heads<const T> k, Heads<const T> v, Heads<T> o,
                       T* maximum, T* sum) {
  __shared__ SharedArray<T, tile<T>*(tile<T> + 1)> weights_array;
  const AttentionShape& s = visible.s;
  const Own<T> own(s.heads, s.queries);
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
      const bool seen = visible.sees(own.b, own.first + place.row(r), first + place.column);
      const T score = T(s.scale) * scores[r];
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
  const unsigned blocks = blocks_of<T>(s.batch, s.heads, s.queries);
  if (blocks == 0) return;
  launch<attend<T>>(device, {blocks, attention_threads, shared_bytes<T>(s.key_dim, s.value_dim, 2, 2)},
                    Visibility(s, key_mask), q, k, v, o, maximum, sum);
}

namespace {

/// What backward reads: the operands and, for each row [B, H, Tq],
///   P = inverse_sum exp(score - maximum),  dS = slope exp(score - maximum) (d_o v^T - delta).
template <class T>
struct Saved {
  Heads<const T> q, k, v, d_o;
  const T *maximum, *inverse_sum, *slope, *delta;
};

/// A warp has a query: delta = d_o . o; slope = inverse_sum, but 0 where it sees one key: that has all the
/// weight whatever its score, and rounding in d_o v^T - delta must not say otherwise.
template <class T>
__global__ void row_statistics(Visibility visible, Heads<const T> o, Heads<const T> d_o, const T* sum,
                               T* inverse_sum, T* slope, T* delta) {
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
  for (int64_t key = range.begin + lane; key < range.end; key += 32) keys += visible.keeps(b, key);
  dot = warp_reduce<Sum>(dot);
  keys = warp_reduce<Sum>(keys);
  if (lane != 0) return;
  inverse_sum[row] = inverse(sum[row]);
  slope[row] = keys == 1 ? T(0) : inverse(sum[row]);
  delta[row] = dot;
}

/// p and dS of one query and key, from q . k and d_o . v; p is -1 where the key isn't seen.
template <class T>
__device__ Pair<T> gradient_of_score(const Visibility& visible, const Saved<T>& saved, int64_t b,
                                     int64_t head, int64_t query, int64_t key, T qk, T dov) {
  if (!visible.sees(b, query, key)) return {T(-1), T(0)};
  const int64_t row = (b * visible.s.heads + head) * visible.s.queries + query;
  const T e = vector_exp(T(visible.s.scale) * qk - saved.maximum[row]);
  return {saved.inverse_sum[row] * e, saved.slope[row] * e * (dov - saved.delta[row])};
}

template <class T>
__global__ void query_gradients(Visibility visible, Saved<T> saved, Heads<T> dq) {
  __shared__ SharedArray<T, tile<T>*(tile<T> + 1)> p_array;
  __shared__ SharedArray<T, tile<T>*(tile<T> + 1)> ds_array;
  const AttentionShape& s = visible.s;
  const Own<T> own(s.heads, s.queries);
  const int64_t key_head = own.head / (s.heads / s.key_heads);
  const Place<T> place;
  const int dk = static_cast<int>(s.key_dim);
  const int dv = static_cast<int>(s.value_dim);
  const Rows<T> q_rows{dynamic_shared<T>(), dk};
  const Rows<T> k_rows{q_rows.end(), dk};
  const Rows<T> dq_rows{k_rows.end(), dk};
  const Rows<T> v_rows{dq_rows.end(), dv};
  const Rows<T> d_o_rows{v_rows.end(), dv};
  const Rows<T> p{p_array.data(), tile<T>};
  const Rows<T> ds{ds_array.data(), tile<T>};
  const auto is_key = [&](int64_t key) { return visible.keeps(own.b, key); };
  const auto is_query = [&](int64_t query) { return query < s.queries; };

  q_rows.load(saved.q, own.b, own.first, own.head, is_query);
  d_o_rows.load(saved.d_o, own.b, own.first, own.head, is_query);
  place.for_each(dq_rows, [&](int row, int c) { dq_rows.at(row, c) = 0; });
  T qk[thread_rows<T>], dov[thread_rows<T>], ones[thread_rows<T>];
  for (T& one : ones) one = 1;
  const Range keys = visible.keys_of(own.first, tile<T>);
  for (int64_t first = keys.begin; first < keys.end; first += tile<T>) {
    if (first > keys.begin) __syncthreads();  // until all have used the tiles before
    k_rows.load(saved.k, own.b, first, key_head, is_key);
    v_rows.load(saved.v, own.b, first, key_head, is_key);
    __syncthreads();
    place.dot(q_rows, k_rows, qk);
    place.dot(d_o_rows, v_rows, dov);
#pragma unroll
    for (int r = 0; r < thread_rows<T>; ++r) {
      const Pair<T> gradient = gradient_of_score(visible, saved, own.b, own.head, own.first + place.row(r),
                                                 first + place.column, qk[r], dov[r]);
      p.at(place.row(r), place.column) = gradient.first;
      ds.at(place.row(r), place.column) = gradient.second;
    }
    __syncwarp();
    place.add(ones, ds, p, k_rows, dq_rows);
  }
  place.for_each(dq_rows, [&](int row, int c) {
    if (!is_query(own.first + row)) return;
    dq.at(own.b, own.first + row, own.head)[c] = T(s.scale) * dq_rows.at(row, c);
  });
}

template <class T>
__global__ void key_gradients(Visibility visible, Saved<T> saved, Heads<T> dk_out, Heads<T> dv_out) {
  __shared__ SharedArray<T, tile<T>*(tile<T> + 1)> p_array;
  __shared__ SharedArray<T, tile<T>*(tile<T> + 1)> ds_array;
  const AttentionShape& s = visible.s;
  const Own<T> own(s.key_heads, s.keys);
  const int64_t group = s.heads / s.key_heads;
  const Place<T> place;
  const int dk = static_cast<int>(s.key_dim);
  const int dv = static_cast<int>(s.value_dim);
  const Rows<T> q_rows{dynamic_shared<T>(), dk};
  const Rows<T> k_rows{q_rows.end(), dk};
  const Rows<T> dk_rows{k_rows.end(), dk};
  const Rows<T> v_rows{dk_rows.end(), dv};
  const Rows<T> d_o_rows{v_rows.end(), dv};
  const Rows<T> dv_rows{d_o_rows.end(), dv};
  const Rows<T> p{p_array.data(), tile<T>};
  const Rows<T> ds{ds_array.data(), tile<T>};
  const auto is_key = [&](int64_t key) { return visible.keeps(own.b, key); };
  const auto is_query = [&](int64_t query) { return query < s.queries; };

  k_rows.load(saved.k, own.b, own.first, own.head, is_key);
  v_rows.load(saved.v, own.b, own.first, own.head, is_key);
  place.for_each(dk_rows, [&](int row, int c) { dk_rows.at(row, c) = 0; });
  place.for_each(dv_rows, [&](int row, int c) { dv_rows.at(row, c) = 0; });
  T qk[thread_rows<T>], dov[thread_rows<T>], ones[thread_rows<T>];
  for (T& one : ones) one = 1;
  const Range queries = visible.queries_of(own.first, tile<T>);
  for (int64_t head = own.head * group; head < (own.head + 1) * group; ++head) {
    for (int64_t first = queries.begin; first < queries.end; first += tile<T>) {
      __syncthreads();  // until all have used the tiles before
      q_rows.load(saved.q, own.b, first, head, is_query);
      d_o_rows.load(saved.d_o, own.b, first, head, is_query);
      __syncthreads();
      place.dot(k_rows, q_rows, qk);
      place.dot(v_rows, d_o_rows, dov);
#pragma unroll
      for (int r = 0; r < thread_rows<T>; ++r) {
        const Pair<T> gradient = gradient_of_score(visible, saved, own.b, head, first + place.column,
                                                   own.first + place.row(r), qk[r], dov[r]);
        p.at(place.row(r), place.column) = gradient.first;
        ds.at(place.row(r), place.column) = gradient.second;
      }
      __syncwarp();
      place.add(ones, p, p, d_o_rows, dv_rows);
      place.add(ones, ds, p, q_rows, dk_rows);
    }
  }
  place.for_each(dk_rows, [&](int row, int c) {
    if (own.first + row >= s.keys) return;
    dk_out.at(own.b, own.first + row, own.head)[c] = T(s.scale) * dk_rows.at(row, c);
  });
  place.for_each(dv_rows, [&](int row, int c) {
    if (own.first + row >= s.keys) return;
    dv_out.at(own.b, own.first + row, own.head)[c] = dv_rows.at(row, c);
  });
}

}  // namespace

template <class T>
void attention_backward(Cuda device, const AttentionShape& s, Heads<const T> q, Heads<const T> k,
                        Heads<const T> v, const int32_t* key_mask, Heads<const T> o, const T* maximum,
                        const T* sum, Heads<const T> d_o, Heads<T> dq, Heads<T> dk, Heads<T> dv) {
  const Visibility visible(s, key_mask);
  const int64_t rows = s.batch * s.heads * s.queries;
  Scratch<T> scratch(3 * rows, cuda::allocator(device));
  T* inverse_sum = scratch.data();
  T* slope = inverse_sum + rows;
  T* delta = slope + rows;
  const Saved<T> saved{q, k, v, d_o, maximum, inverse_sum, slope, delta};
  if (rows > 0) {
    launch<row_statistics<T>>(device, {blocks_for(rows, attention_threads / 32), attention_threads}, visible,
                              o, d_o, sum, inverse_sum, slope, delta);
    launch<query_gradients<T>>(device,
                               {blocks_of<T>(s.batch, s.heads, s.queries), attention_threads,
                                shared_bytes<T>(s.key_dim, s.value_dim, 3, 2)},
                               visible, saved, dq);
  }
  const unsigned key_blocks = blocks_of<T>(s.batch, s.key_heads, s.keys);
  if (key_blocks == 0) return;
  launch<key_gradients<T>>(device,
                           {key_blocks, attention_threads, shared_bytes<T>(s.key_dim, s.value_dim, 3, 3)},
                           visible, saved, dk, dv);
}

#define INSTANTIATE(T)                                                                                    \
  template void attention_forward<T>(Cuda, const AttentionShape&, Heads<const T>, Heads<const T>,         \
                                     Heads<const T>, const int32_t*, Heads<T>, T*, T*);                   \
  template void attention_backward<T>(Cuda, const AttentionShape&, Heads<const T>, Heads<const T>,        \
                                      Heads<const T>, const int32_t*, Heads<const T>, const T*, const T*, \
                                      Heads<const T>, Heads<T>, Heads<T>, Heads<T>);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
