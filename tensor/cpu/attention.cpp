// Softmax attention on the CPU, tile by tile: a tile of scores lives on its thread's stack.
//
// Masking is by selection: what a row doesn't see never enters a sum, not even times 0, for it may be NaN.
#include "tensor/kernels/attention.h"

#include <algorithm>
#include <array>
#include <limits>

#include "tensor/allocator.h"
#include "tensor/cpu/reduce.h"
#include "tensor/cpu/tile_gemm.h"
#include "tensor/kernels/vector_math.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

// 64 x 64 is within 10 % of the best for every shape tried, and two tiles of float fit into a first-level
// cache.
constexpr int64_t tile_rows = 64;
constexpr int64_t tile_columns = 64;
// Where the rows of a tile see different parts of it, it is worked on in blocks of rows that see nearly the
// same.
constexpr int64_t block_rows = 8;
constexpr int64_t vector_lanes = 16;

struct Range {
  int64_t begin, end;
};

/// Who sees whom. Where a mask drops keys, those that it keeps are copied, moved together and numbered anew:
/// so both relations are ranges, whose ends never decrease from one row to the next, under every mask.
class Visibility {
 public:
  Visibility(const AttentionShape& shape, const int32_t* key_mask)
      : shape_(shape),
        // No window is one that nothing lies outside of.
        window_(shape.window > 0 ? std::min(shape.window, shape.queries + shape.keys)
                                 : shape.queries + shape.keys),
        storage_(key_mask != nullptr ? shape.batch * shape.keys : 0),
        places_(storage_.data()),
        ends_storage_(shape.begins != nullptr ? shape.batch * shape.keys : 0),
        ends_(ends_storage_.data()) {
    parallel_tasks(ends_ != nullptr ? shape.batch : 0, [&](int64_t b) {
      const int64_t* const begins = shape.begins + b * shape.keys;
      int64_t* const ends = ends_ + b * shape.keys;
      for (int64_t t = shape.keys - 1; t >= 0; --t) {
        const bool last = t == shape.keys - 1 || begins[t + 1] != begins[t];
        ends[t] = last ? t + 1 : ends[t + 1];
      }
    });
    for (int64_t b = 0; places_ != nullptr && b < shape.batch; ++b) {
      int64_t* place = places_ + b * shape.keys;
      int64_t* const end = place + shape.keys;
      for (int64_t j = 0; j < shape.keys; ++j) {
        if (key_mask[b * shape.keys + j] != 0) *place++ = j;
      }
      std::fill(place, end, shape.keys);
    }
  }

  /// How many keys are kept.
  int64_t keys(int64_t batch) const { return kept_before(batch, shape_.keys); }

  /// The keys that a query sees.
  Range keys_of(int64_t batch, int64_t query) const {
    if (!shape_.causal) return {0, keys(batch)};
    const int64_t end = query + shape_.keys - shape_.queries + 1;
    int64_t begin = end - window_;
    if (shape_.begins != nullptr && end > 0)
      begin = std::max(begin, shape_.begins[batch * shape_.keys + end - 1]);
    return {kept_before(batch, begin), kept_before(batch, end)};
  }

  /// The queries that see a key.
  Range queries_of(int64_t batch, int64_t key) const {
    if (!shape_.causal) return {0, shape_.queries};
    const int64_t before = shape_.keys - shape_.queries;
    const int64_t place = place_of(batch, key);
    int64_t end = place + window_;
    if (shape_.begins != nullptr) end = std::min(end, ends_[batch * shape_.keys + place]);
    return {std::clamp<int64_t>(place - before, 0, shape_.queries),
            std::clamp<int64_t>(end - before, 0, shape_.queries)};
  }

  /// A kept key's number among all.
  int64_t place_of(int64_t batch, int64_t key) const {
    return places_ != nullptr ? places_[batch * shape_.keys + key] : key;
  }

  /// How many elements a copy of the kept keys needs, for `width` elements a key and head.
  int64_t copy_elements(int64_t width) const {
    return places_ != nullptr ? shape_.batch * shape_.keys * shape_.key_heads * width : 0;
  }

  /// Where the kept keys of x lie: in x itself, or under a mask in a copy.
  template <class T>
  Heads<T> kept(Heads<T> x, T* copy) const {
    if (places_ == nullptr) return x;
    const int64_t token = shape_.key_heads * x.head_size;
    return {copy, shape_.keys * token, token, x.head_size};
  }

  /// Copies the kept keys of x to where kept() says; returns that.
  template <class T>
  Heads<const T> gather(Heads<const T> x, T* copy) const {
    if (places_ == nullptr) return x;
    const Heads<T> to = kept(Heads<T>{.head_size = x.head_size}, copy);
    parallel_tasks(shape_.batch, [&](int64_t b) {
      const int64_t count = keys(b);
      for (int64_t j = 0; j < count; ++j) {
        std::copy_n(x.at(b, places_[b * shape_.keys + j], 0), to.token_stride, to.at(b, j, 0));
      }
    });
    return {to.data, to.batch_stride, to.token_stride, to.head_size};
  }

  /// The way back: x gets the values of the kept keys, and 0 for the others.
  template <class T>
  void scatter(Heads<T> from, Heads<T> x) const {
    if (places_ == nullptr) return;
    parallel_tasks(shape_.batch, [&](int64_t b) {
      int64_t next = 0;
      for (int64_t j = 0; j < shape_.keys; ++j) {
        if (places_[b * shape_.keys + next] == j)
          std::copy_n(from.at(b, next++, 0), from.token_stride, x.at(b, j, 0));
        else
          std::fill_n(x.at(b, j, 0), from.token_stride, T(0));
      }
    });
  }

 private:
  int64_t kept_before(int64_t batch, int64_t place) const {
    place = std::clamp<int64_t>(place, 0, shape_.keys);
    if (places_ == nullptr) return place;
    const int64_t* const places = places_ + batch * shape_.keys;
    return std::lower_bound(places, places + shape_.keys, place) - places;
  }

  AttentionShape shape_;
  int64_t window_;
  Scratch<int64_t> storage_;
  int64_t* places_;  // [B, Tk], each kept key's number among all, the rest Tk; null: all are kept
  Scratch<int64_t> ends_storage_;
  int64_t* ends_;  // [B, Tk], behind the last token of each one's document; with begins alone
};

/// Scores between some rows and some columns: queries and keys, or keys and queries.
struct Tile {
  int64_t rows, columns;
  std::array<Range, tile_rows> seen;  // for each row, the columns that it sees
};

/// Calls body(tile, first column) for the tiles that hold everything that the rows see; row i sees seen(i).
template <class Seen, class Body>
void for_each_tile(int64_t rows, const Seen& seen, const Body& body) {
  std::array<Range, tile_rows> all{};
  for (int64_t i = 0; i < rows; ++i) all[i] = seen(i);
  const int64_t end = all[rows - 1].end;
  for (int64_t first = all[0].begin; first < end; first += tile_columns) {
    Tile tile{rows, std::min(tile_columns, end - first), {}};
    for (int64_t i = 0; i < rows; ++i) {
      tile.seen[i] = {std::clamp<int64_t>(all[i].begin - first, 0, tile.columns),
                      std::clamp<int64_t>(all[i].end - first, 0, tile.columns)};
    }
    body(tile, first);
  }
}

/// Calls body(first row, rows) for blocks of a tile's rows: for all at once where every row sees the whole
/// tile.
template <class Body>
void for_each_block(const Tile& tile, const Body& body) {
  const bool whole = tile.seen[tile.rows - 1].begin == 0 && tile.seen[0].end == tile.columns;
  const int64_t block = whole ? tile.rows : block_rows;
  for (int64_t first = 0; first < tile.rows; first += block) {
    body(first, std::min(block, tile.rows - first));
  }
}

/// Neighbouring tokens of one head.
template <class T>
struct Rows {
  T* data;
  int64_t stride, width;

  T* row(int64_t index) const { return data + index * stride; }
};

template <class T>
Rows<T> rows_of(Heads<T> x, int64_t batch, int64_t token, int64_t head) {
  return {x.at(batch, token, head), x.token_stride, x.head_size};
}

/// s[i, j] = factor a[i] . b[j], at least where row i sees column j.
template <class T>
void dot_seen(const Tile& tile, T factor, Rows<const T> a, Rows<const T> b, T* s) {
  for_each_block(tile, [&](int64_t first, int64_t rows) {
    const Range any{tile.seen[first].begin, tile.seen[first + rows - 1].end};
    if (any.begin >= any.end) return;
    tile_gemm({.m = rows,
               .n = any.end - any.begin,
               .k = a.width,
               .b = Transpose::yes,
               .lda = a.stride,
               .ldb = b.stride,
               .ldc = tile_columns},
              factor, a.row(first), b.row(any.begin), T(0), s + first * tile_columns + any.begin);
  });
}

/// y[i] += factor * sum over the columns j that row i sees of p[i, j] x[j].
template <class T>
void add_seen(const Tile& tile, T factor, const T* p, Rows<const T> x, Rows<T> y) {
  for_each_block(tile, [&](int64_t first, int64_t rows) {
    // The columns that all of these rows see make a matrix product; a narrow band remains at either side.
    Range common{tile.seen[first + rows - 1].begin, tile.seen[first].end};
    if (common.begin >= common.end) common = {0, 0};
    tile_gemm({.m = rows,
               .n = x.width,
               .k = common.end - common.begin,
               .lda = tile_columns,
               .ldb = x.stride,
               .ldc = y.stride},
              factor, p + first * tile_columns + common.begin, x.row(common.begin), T(1), y.row(first));
    for (int64_t i = first; i < first + rows; ++i) {
      const auto add_columns = [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) {
          const T weight = factor * p[i * tile_columns + j];
          for (int64_t c = 0; c < x.width; ++c) y.row(i)[c] += weight * x.row(j)[c];
        }
      };
      add_columns(tile.seen[i].begin, std::min(tile.seen[i].end, common.begin));
      add_columns(std::max(tile.seen[i].begin, common.end), tile.seen[i].end);
    }
  });
}

/// y[j] += factor * sum over the rows i that see column j of p[i, j] x[i].
template <class T>
void add_seen_by(const Tile& tile, T factor, const T* p, Rows<const T> x, Rows<T> y) {
  for_each_block(tile, [&](int64_t first, int64_t rows) {
    Range common{tile.seen[first + rows - 1].begin, tile.seen[first].end};
    if (common.begin >= common.end) common = {0, 0};
    tile_gemm({.m = common.end - common.begin,
               .n = x.width,
               .k = rows,
               .a = Transpose::yes,
               .lda = tile_columns,
               .ldb = x.stride,
               .ldc = y.stride},
              factor, p + first * tile_columns + common.begin, x.row(first), T(1), y.row(common.begin));
    for (int64_t i = first; i < first + rows; ++i) {
      const auto add_row = [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) {
          const T weight = factor * p[i * tile_columns + j];
          for (int64_t c = 0; c < x.width; ++c) y.row(j)[c] += weight * x.row(i)[c];
        }
      };
      add_row(tile.seen[i].begin, std::min(tile.seen[i].end, common.begin));
      add_row(std::max(tile.seen[i].begin, common.end), tile.seen[i].end);
    }
  });
}

/// Calls body(row, begin, end) for each row of scores and what it sees, widened to whole vectors where the
/// tile allows it. The neighbours that this takes in get -inf: they change neither a maximum nor a sum of
/// exp(score).
template <class T, class Body>
void for_each_seen(const Tile& tile, T* scores, const Body& body) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    const Range seen = tile.seen[i];
    if (seen.begin == seen.end) continue;
    const int64_t begin = seen.begin / vector_lanes * vector_lanes;
    const int64_t end = std::min((seen.end + vector_lanes - 1) / vector_lanes * vector_lanes, tile.columns);
    T* const row = scores + i * tile_columns;
    std::fill(row + begin, row + seen.begin, -std::numeric_limits<T>::infinity());
    std::fill(row + seen.end, row + end, -std::numeric_limits<T>::infinity());
    body(i, begin, end);
  }
}

/// The decays of neighbouring kept keys, and of neighbouring queries, of one head.
struct Decays {
  const AttentionShape& s;
  const Visibility& visible;

  const double* of_head(int64_t batch, int64_t head) const {
    return s.decay + (batch * s.heads + head) * s.keys;
  }
  double of_key(int64_t batch, int64_t head, int64_t key) const {
    return of_head(batch, head)[visible.place_of(batch, key)];
  }
  const double* of_queries(int64_t batch, int64_t head, int64_t query) const {
    return of_head(batch, head) + query + s.keys - s.queries;
  }
};

/// A task: neighbouring tokens of one head of one sample.
struct Task {
  int64_t batch, head, first, rows;
};

/// Calls body(task) for tasks that cover batch x heads x tokens, in parallel.
template <class Body>
void for_each_task(int64_t batch, int64_t heads, int64_t tokens, const Body& body) {
  const int64_t tiles = (tokens + tile_rows - 1) / tile_rows;
  parallel_tasks(batch * heads * tiles, [&](int64_t index) {
    const int64_t first = index % tiles * tile_rows;
    body(Task{index / tiles / heads, index / tiles % heads, first, std::min(tile_rows, tokens - first)});
  });
}

template <class T>
void clear(int64_t rows, Rows<T> x) {
  for (int64_t i = 0; i < rows; ++i) std::fill_n(x.row(i), x.width, T(0));
}

template <class T>
void scale_row(int64_t width, T factor, T* x) {
  for (int64_t c = 0; c < width; ++c) x[c] *= factor;
}

/// 1 / sum; 0 for the sum of nothing.
template <class T>
T inverse(T sum) {
  return sum == 0 ? T(0) : 1 / sum;
}

}  // namespace

template <class T>
void attention_forward(Cpu, const AttentionShape& s, Heads<const T> q, Heads<const T> k, Heads<const T> v,
                       const int32_t* key_mask, Heads<T> o, T* maximum, T* sum) {
  const Visibility visible(s, key_mask);
  Scratch<T> k_copy(visible.copy_elements(s.key_dim)), v_copy(visible.copy_elements(s.value_dim));
  k = visible.gather(k, k_copy.data());
  v = visible.gather(v, v_copy.data());
  const Decays decays{s, visible};

  for_each_task(s.batch, s.heads, s.queries, [&](const Task& task) {
    const int64_t key_head = task.head / (s.heads / s.key_heads);
    const int64_t row = (task.batch * s.heads + task.head) * s.queries + task.first;
    T* const row_max = maximum + row;
    T* const total = sum + row;
    const Rows<const T> q_rows = rows_of(q, task.batch, task.first, task.head);
    const Rows<T> o_rows = rows_of(o, task.batch, task.first, task.head);
    std::fill_n(row_max, task.rows, std::numeric_limits<T>::lowest());
    std::fill_n(total, task.rows, T(0));
    clear(task.rows, o_rows);
    alignas(64) T p[tile_rows * tile_columns];

    const auto seen = [&](int64_t i) { return visible.keys_of(task.batch, task.first + i); };
    for_each_tile(task.rows, seen, [&](const Tile& tile, int64_t key) {
      dot_seen(tile, T(s.scale), q_rows, rows_of(k, task.batch, key, key_head), p);
      double key_decays[tile_columns];
      for (int64_t j = 0; s.decay != nullptr && j < tile.columns; ++j) {
        key_decays[j] = decays.of_key(task.batch, task.head, key + j);
      }
      for_each_seen(tile, p, [&](int64_t i, int64_t begin, int64_t end) {
        T* const score = p + i * tile_columns;
        if (s.decay != nullptr) {
          const double mine = *decays.of_queries(task.batch, task.head, task.first + i);
          for (int64_t j = tile.seen[i].begin; j < tile.seen[i].end; ++j) {
            score[j] += static_cast<T>(mine - key_decays[j]);
          }
        }
        const T before = row_max[i];
        const T now = std::max(before, row_maximum(end - begin, score + begin));
        for (int64_t j = begin; j < end; ++j) score[j] = vector_exp(score[j] - now);
        // What was summed up so far was relative to the maximum so far.
        const T correction = vector_exp(before - now);
        row_max[i] = now;
        total[i] =
            correction * total[i] + row_sum<T>(end - begin, [=](int64_t j) { return score[begin + j]; });
        scale_row(o_rows.width, correction, o_rows.row(i));
      });
      add_seen(tile, T(1), p, rows_of(v, task.batch, key, key_head), o_rows);
    });
    for (int64_t i = 0; i < task.rows; ++i) scale_row(o_rows.width, inverse(total[i]), o_rows.row(i));
  });
}

namespace {

/// What backward reads: the operands and, for each row [B, H, Tq],
///   P = inverse_sum exp(score - maximum),  dS = slope exp(score - maximum) (d_o v^T - delta).
template <class T>
struct Saved {
  const AttentionShape& shape;
  const Visibility& visible;
  Heads<const T> q, k, v, d_o;
  const T* maximum;
  const T* inverse_sum;
  const T* slope;
  const T* delta;

  int64_t row(int64_t batch, int64_t head, int64_t query) const {
    return (batch * shape.heads + head) * shape.queries + query;
  }
};

/// delta = d_o . o; slope = inverse_sum, but 0 where a query sees one key: it has all the weight whatever its
/// score, and rounding in d_o v^T - delta must not say otherwise.
template <class T>
void statistics(const AttentionShape& s, const Visibility& visible, Heads<const T> o, Heads<const T> d_o,
                const T* sum, T* inverse_sum, T* slope, T* delta) {
  for_each_task(s.batch, s.heads, s.queries, [&](const Task& task) {
    const Rows<const T> o_rows = rows_of(o, task.batch, task.first, task.head);
    const Rows<const T> d_o_rows = rows_of(d_o, task.batch, task.first, task.head);
    for (int64_t i = 0; i < task.rows; ++i) {
      const int64_t row = (task.batch * s.heads + task.head) * s.queries + task.first + i;
      const Range seen = visible.keys_of(task.batch, task.first + i);
      const T *const a = o_rows.row(i), *const b = d_o_rows.row(i);
      inverse_sum[row] = inverse(sum[row]);
      slope[row] = seen.end - seen.begin == 1 ? T(0) : inverse_sum[row];
      delta[row] = row_sum<T>(o_rows.width, [=](int64_t c) { return a[c] * b[c]; });
    }
  });
}

/// The gradients of one key head and of all queries that read it: tiles of keys against the queries that see
/// them. A key's gradients are finished with its tile; those of the queries grow from one tile to the next.
template <class T>
void backward_head(const Saved<T>& saved, int64_t batch, int64_t key_head, Heads<T> dq, Heads<T> dk,
                   Heads<T> dv, double* score_sums) {
  const AttentionShape& s = saved.shape;
  const Decays decays{s, saved.visible};
  const int64_t group = s.heads / s.key_heads;
  for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    clear(s.queries, rows_of(dq, batch, 0, head));
    if (score_sums != nullptr) std::fill_n(score_sums + (batch * s.heads + head) * s.keys, s.keys, 0.0);
  }
  const int64_t keys = saved.visible.keys(batch);
  for (int64_t first = 0; first < keys; first += tile_rows) {
    const int64_t rows = std::min(tile_rows, keys - first);
    const Rows<const T> k = rows_of(saved.k, batch, first, key_head);
    const Rows<const T> v = rows_of(saved.v, batch, first, key_head);
    const Rows<T> dk_rows = rows_of(dk, batch, first, key_head);
    const Rows<T> dv_rows = rows_of(dv, batch, first, key_head);
    clear(rows, dk_rows);
    clear(rows, dv_rows);
    alignas(64) T p[tile_rows * tile_columns];
    alignas(64) T dp[tile_rows * tile_columns];

    const auto seen = [&](int64_t j) { return saved.visible.queries_of(batch, first + j); };
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      for_each_tile(rows, seen, [&](const Tile& tile, int64_t query) {
        const Rows<const T> q = rows_of(saved.q, batch, query, head);
        const Rows<const T> d_o = rows_of(saved.d_o, batch, query, head);
        const int64_t column = saved.row(batch, head, query);
        const T* const maximum = saved.maximum + column;
        const T* const inverse_sum = saved.inverse_sum + column;
        const T* const slope = saved.slope + column;
        const T* const delta = saved.delta + column;
        dot_seen(tile, T(s.scale), k, q, p);
        dot_seen(tile, T(1), v, d_o, dp);
        for_each_seen(tile, p, [&](int64_t j, int64_t begin, int64_t end) {
          T* const score = p + j * tile_columns;
          T* const ds = dp + j * tile_columns;
          if (s.decay != nullptr) {
            const double mine = decays.of_key(batch, head, first + j);
            const double* const theirs = decays.of_queries(batch, head, query);
            for (int64_t i = tile.seen[j].begin; i < tile.seen[j].end; ++i) {
              score[i] += static_cast<T>(theirs[i] - mine);
            }
          }
          for (int64_t i = begin; i < end; ++i) {
            const T e = vector_exp(score[i] - maximum[i]);
            score[i] = inverse_sum[i] * e;
            ds[i] = slope[i] * e * (ds[i] - delta[i]);
          }
        });
        for (int64_t j = 0; score_sums != nullptr && j < rows; ++j) {
          double& total =
              score_sums[(batch * s.heads + head) * s.keys + saved.visible.place_of(batch, first + j)];
          for (int64_t i = tile.seen[j].begin; i < tile.seen[j].end; ++i) total += dp[j * tile_columns + i];
        }
        add_seen(tile, T(1), p, d_o, dv_rows);
        add_seen(tile, T(s.scale), dp, q, dk_rows);
        add_seen_by(tile, T(s.scale), dp, k, rows_of(dq, batch, query, head));
      });
    }
  }
}

}  // namespace

// One task for all tokens of a key head, so that probabilities are computed once and each sum has one owner.
template <class T>
void attention_backward(Cpu, const AttentionShape& s, Heads<const T> q, Heads<const T> k, Heads<const T> v,
                        const int32_t* key_mask, Heads<const T> o, const T* maximum, const T* sum,
                        Heads<const T> d_o, Heads<T> dq, Heads<T> dk, Heads<T> dv, double* score_sums) {
  const Visibility visible(s, key_mask);
  const int64_t rows = s.batch * s.heads * s.queries;
  Scratch<T> inverse_sum(rows), slope(rows), delta(rows);
  Scratch<T> k_copy(visible.copy_elements(s.key_dim)), v_copy(visible.copy_elements(s.value_dim));
  Scratch<T> dk_copy(visible.copy_elements(s.key_dim)), dv_copy(visible.copy_elements(s.value_dim));
  statistics(s, visible, o, d_o, sum, inverse_sum.data(), slope.data(), delta.data());

  const Saved<T> saved{.shape = s,
                       .visible = visible,
                       .q = q,
                       .k = visible.gather(k, k_copy.data()),
                       .v = visible.gather(v, v_copy.data()),
                       .d_o = d_o,
                       .maximum = maximum,
                       .inverse_sum = inverse_sum.data(),
                       .slope = slope.data(),
                       .delta = delta.data()};
  const Heads<T> dk_kept = visible.kept(dk, dk_copy.data());
  const Heads<T> dv_kept = visible.kept(dv, dv_copy.data());
  parallel_tasks(s.batch * s.key_heads, [&](int64_t index) {
    backward_head(saved, index / s.key_heads, index % s.key_heads, dq, dk_kept, dv_kept, score_sums);
  });
  visible.scatter(dk_kept, dk);
  visible.scatter(dv_kept, dv);
}

void document_begins(Cpu, int64_t batch, int64_t length, const int32_t* documents, int64_t* begins) {
  parallel_tasks(batch, [=](int64_t b) {
    int64_t begin = 0;
    for (int64_t t = 0; t < length; ++t) {
      if (documents[b * length + t] != 0) begin = t;
      begins[b * length + t] = begin;
    }
  });
}

namespace {

/// Calls step(element of [B, T, H], element of [B, H, T], whether a document begins, sum) from the first
/// token of each head of a sequence to its last. The sum is 0 again where a document begins.
template <class Step>
void along_heads(int64_t batch, int64_t length, int64_t heads, const int64_t* begins, const Step& step) {
  parallel_tasks(batch * heads, [=](int64_t row) {
    const int64_t b = row / heads, head = row % heads;
    double sum = 0;
    for (int64_t t = 0; t < length; ++t) {
      const bool first = t == 0 || (begins != nullptr && begins[b * length + t] == t);
      if (first) sum = 0;
      step((b * length + t) * heads + head, row * length + t, first, sum);
    }
  });
}

}  // namespace

template <class T>
void attention_decay_forward(Cpu, int64_t batch, int64_t length, int64_t heads, const T* log_decay,
                             const int64_t* begins, double* decay) {
  along_heads(batch, length, heads, begins, [=](int64_t token, int64_t place, bool first, double& sum) {
    if (!first) sum += log_decay[token];
    decay[place] = sum;
  });
}

template <class T>
void attention_decay_backward(Cpu, int64_t batch, int64_t length, int64_t heads, const double* score_sums,
                              const int64_t* begins, T* dlog_decay) {
  along_heads(batch, length, heads, begins, [=](int64_t token, int64_t place, bool, double& sum) {
    dlog_decay[token] = static_cast<T>(sum);
    sum += score_sums[place];
  });
}

#define INSTANTIATE(T)                                                                                     \
  template void attention_forward<T>(Cpu, const AttentionShape&, Heads<const T>, Heads<const T>,           \
                                     Heads<const T>, const int32_t*, Heads<T>, T*, T*);                    \
  template void attention_backward<T>(Cpu, const AttentionShape&, Heads<const T>, Heads<const T>,          \
                                      Heads<const T>, const int32_t*, Heads<const T>, const T*, const T*,  \
                                      Heads<const T>, Heads<T>, Heads<T>, Heads<T>, double*);              \
  template void attention_decay_forward<T>(Cpu, int64_t, int64_t, int64_t, const T*, const int64_t*,       \
                                           double*);                                                       \
  template void attention_decay_backward<T>(Cpu, int64_t, int64_t, int64_t, const double*, const int64_t*, \
                                            T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
