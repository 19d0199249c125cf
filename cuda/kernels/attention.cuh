// What the kernels of attention have in common, those of float and double (attention.cu) and those on tensor
// cores (attention_bf16.cu): who sees whom, and what backward reads.
#pragma once

#include "cuda/device_code.h"
#include "cuda/kernels/block.cuh"
#include "tensor/kernels/attention.h"

namespace mixgrad {

/// Tokens [begin, end).
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
    if (!in_window || query >= s.queries || !keeps(b, key)) return false;
    return s.begins == nullptr || key >= s.begins[b * s.keys + newest];
  }
  /// What the score of a query and a key that it sees gets from the decays.
  template <class T>
  __device__ T decay(int64_t b, int64_t head, int64_t query, int64_t key) const {
    if (s.decay == nullptr) return 0;
    const double* const of_head = s.decay + (b * s.heads + head) * s.keys;
    return static_cast<T>(of_head[query + s.keys - s.queries] - of_head[key]);
  }
  /// Whether each of `queries` queries surely sees each of `keys` keys.
  __device__ bool all_see_all(int64_t query, int64_t queries, int64_t key, int64_t keys) const {
    const int64_t oldest = query + s.keys - s.queries;  // of the newest keys of each
    const bool in_window = !s.causal || (key + keys - 1 <= oldest && key > oldest + queries - 1 - window);
    return in_window && key_mask == nullptr && s.begins == nullptr && query + queries <= s.queries &&
           key + keys <= s.keys;
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

/// The rows that a block owns, queries or keys: a tile of one head.
struct Own {
  int64_t b, head, first;

  __device__ Own(int64_t heads, int64_t tokens, int tile) {
    const int64_t tiles = (tokens + tile - 1) / tile;
    first = blockIdx.x % tiles * tile;
    head = blockIdx.x / tiles % heads;
    b = blockIdx.x / tiles / heads;
  }
};

inline unsigned blocks_of(int64_t batch, int64_t heads, int64_t tokens, int tile) {
  return blocks_for(batch * heads * ((tokens + tile - 1) / tile), 1);
}

/// 1 / sum; 0 for the sum of nothing.
template <class T>
__device__ T inverse(T sum) {
  return sum == 0 ? T(0) : 1 / sum;
}

/// What backward knows of the scores of a query:
///   P = inverse_sum exp(score - maximum),  dS = slope exp(score - maximum) (d_o v^T - delta).
template <class T>
struct alignas(16) RowStatistics {
  T maximum, inverse_sum, slope, delta;
};

/// Two operands of the same tokens: q and d_o, or k and v.
template <class T>
struct OperandPair {
  Heads<const T> a, b;
};

/// What backward reads; rows is [B, H, Tq].
template <class T>
struct Saved {
  OperandPair<T> queries, keys;
  const RowStatistics<T>* rows;

  __device__ const RowStatistics<T>& row(const AttentionShape& s, int64_t b, int64_t head,
                                         int64_t query) const {
    return rows[(b * s.heads + head) * s.queries + query];
  }
};

/// The two kernels of backward are written as one: a block owns queries, or keys, and goes through the rows
/// of the other kind. With a and b as in OperandPair, of an own and another row
///   q . k = own a . other a,   d_o . v = own b . other b,   d(own a) += scale dS other a,
/// and, where keys are owned, d(own b) += P other b.
enum class Side { queries, keys };

template <Side side>
__device__ Own own_tile(const AttentionShape& s, int tile) {
  return side == Side::keys ? Own(s.key_heads, s.keys, tile) : Own(s.heads, s.queries, tile);
}

/// The rows of the other kind that an own tile goes through: some tokens of some heads.
struct Others {
  int64_t begin_head, end_head;
  Range tokens;
};

template <Side side>
__device__ Others others_of(const Visibility& visible, const Own& own, int tile) {
  const int64_t group = visible.s.heads / visible.s.key_heads;
  if (side == Side::queries) {
    return {own.head / group, own.head / group + 1, visible.keys_of(own.first, tile)};
  }
  return {own.head * group, (own.head + 1) * group, visible.queries_of(own.first, tile)};
}

/// Whether products of tiles are to be rounded to bfloat16, heads are narrow enough for the kernels that do
/// it, 128, and there are no decays, which these kernels don't know.
bool attends_in_bf16(const AttentionShape& shape);
void attend_in_bf16(const Cuda& device, const Visibility& visible, Heads<const float> q, Heads<const float> k,
                    Heads<const float> v, Heads<float> o, float* maximum, float* sum);
/// The gradients of the own side's operands; db is of keys alone.
template <Side side>
void gradients_in_bf16(const Cuda& device, const Visibility& visible, const Saved<float>& saved,
                       Heads<float> da, Heads<float> db);

}  // namespace mixgrad
