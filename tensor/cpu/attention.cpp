// Softmax attention on the CPU, tile by tile: a tile of scores lives on its thread's stack.
//
// Masking is by selection: what a row doesn't see never enters a sum, not even times 0, for it may be NaN.
#include "tensor/kernels/attention.h"

#include <algorithm>
#include <array>
#include <limits>

#include "tensor/allocator.h"
#include "tensor/cpu/panels.h"
#include "tensor/cpu/reduce.h"
#include "tensor/cpu/tiles.h"
#include "tensor/kernels/vector_math.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

// Backward: a tile of scores of so many queries and keys, with its operands, fits into a second-level cache
// and nearly into a first-level one. Forward there are a few rows of scores at a time, the longer the better.
constexpr int64_t tile_rows = 64;
constexpr int64_t tile_columns = 64;
constexpr int64_t forward_columns = 128;
// A task of the forward pass: keys and values are laid out once for so many queries.
constexpr int64_t task_rows = 256;
constexpr int64_t vector_lanes = 16;
// With fewer queries, keys are read as they lie: laying them out costs more than the products.
constexpr int64_t least_rows_to_lay_out = 4;

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

/// What each of some rows sees, of all columns or of a tile's.
using Seen = std::array<Range, task_rows>;

/// What the rows see of the columns [first, first + columns), counted from the first.
Seen part_of(const Seen& seen, int64_t rows, int64_t first, int64_t columns) {
  Seen part;
  for (int64_t i = 0; i < rows; ++i) {
    part[i] = {std::clamp<int64_t>(seen[i].begin - first, 0, columns),
               std::clamp<int64_t>(seen[i].end - first, 0, columns)};
  }
  return part;
}

/// The same relation from the columns' side: for each, the rows that see it.
Seen transposed(const Seen& seen, int64_t rows, int64_t columns) {
  Seen seen_by;
  int64_t begin = 0, end = 0;
  for (int64_t j = 0; j < columns; ++j) {
    while (begin < rows && seen[begin].end <= j) ++begin;
    while (end < rows && seen[end].begin <= j) ++end;
    seen_by[j] = {begin, std::max(begin, end)};
  }
  return seen_by;
}

/// What any of these rows sees.
Range seen_by_any(const Seen& seen, Range rows) { return {seen[rows.begin].begin, seen[rows.end - 1].end}; }

/// Calls body(rows) for blocks of [0, count) that a product takes at once, of nearly the same size.
template <class T, class Body>
void for_each_block(int64_t count, const Body& body) {
  const int64_t most = panel_size<T>().rows, blocks = (count + most - 1) / most;
  for (int64_t i = 0; i < blocks; ++i) body(Range{count * i / blocks, count * (i + 1) / blocks});
}

/// Tokens of one head, [tokens, width], as the second operand of products: whole panels beside each other.
/// For few rows of a product the tokens as they lie.
template <class T>
struct Operand {
  Rows<const T> rows;
  int64_t width;
  bool laid_out;

  /// Copies x [tokens, width], unless there is no room. Zeros fill the last panel, and the gap between rows
  /// is one at which they don't evict each other.
  Operand(int64_t tokens, int64_t width, Rows<const T> x, T* room)
      : rows(x), width(width), laid_out(room != nullptr) {
    if (!laid_out) return;
    rows = {room, room_size(1, width)};
    for (int64_t t = 0; t < tokens; ++t) {
      T* const to = room + t * rows.stride;
      std::copy_n(x[t], width, to);
      std::fill(to + width, to + padded<T>(width), T(0));
    }
  }
  static int64_t room_size(int64_t tokens, int64_t width) { return tokens * (padded<T>(width) + 16); }

  /// Without the first tokens.
  Operand from(int64_t token) const {
    Operand rest = *this;
    rest.rows = rows.from(token);
    return rest;
  }

  bool finite(int64_t begin, int64_t end) const {
    T zeros = 0;
    for (int64_t t = begin; t < end; ++t)
      zeros += row_sum<T>(width, [row = rows[t]](int64_t c) { return 0 * row[c]; });
    return zeros == 0;
  }
};

/// The transpose of tokens of one head, [width, tokens], in panels; for few rows of a product the tokens
/// themselves.
template <class T>
struct Columns {
  Rows<const T> tokens;
  int64_t width;
  const T* panels;  // null: not laid out

  Columns(int64_t count, int64_t width, Rows<const T> x, T* room) : tokens(x), width(width), panels(room) {
    const int64_t step = panel_size<T>().columns;
    for (int64_t t = 0; room != nullptr && t < count; t += step)
      transpose_to_panel(std::min(step, count - t), width, x[t], x.stride, room + t * width);
  }
  static int64_t room_size(int64_t tokens, int64_t width) { return padded<T>(tokens) * width; }
};

/// s[i, j] = factor a[i] . b[j], at least for the columns asked for; a few rows, of a tile each.
template <class T>
void dot_products(int64_t rows, Range columns, T factor, Rows<const T> a, const Columns<T>& b, Rows<T> s) {
  if (b.panels == nullptr) {
    tile_gemm({.m = rows,
               .n = columns.end - columns.begin,
               .k = b.width,
               .b = Transpose::yes,
               .lda = a.stride,
               .ldb = b.tokens.stride,
               .ldc = s.stride},
              factor, a.data, b.tokens[columns.begin], T(0), s.data + columns.begin);
    return;
  }
  const int64_t step = panel_size<T>().columns;
  for (int64_t j = columns.begin / step * step; j < columns.end; j += step) {
    multiply_panel(rows, b.width, factor, {a.data, a.stride, 1}, b.panels + j * b.width, step, s.data + j,
                   s.stride, false);
  }
}

/// y[i] += factor * sum over p that row i sees of weights(i, p) x[p], for a block of rows; the weights' lines
/// are these rows, with 0 for what a row doesn't see, and contiguous where x isn't laid out.
template <class T>
void add_seen(const Seen& seen, Range rows, T factor, Lines<T> weights, const Operand<T>& x, Rows<T> y) {
  const Range any = seen_by_any(seen, rows);
  if (any.begin >= any.end) return;
  const Range all{seen[rows.end - 1].begin, seen[rows.begin].end};  // what each of them sees, or end < begin
  const auto others_are_finite = [&] {
    return all.begin <= all.end ? x.finite(any.begin, all.begin) && x.finite(all.end, any.end)
                                : x.finite(any.begin, any.end);
  };
  // 0 times what isn't finite would be NaN: then each row goes alone, over what it sees.
  const bool together = x.laid_out && others_are_finite();
  const int64_t step = together ? rows.end - rows.begin : 1;
  for (int64_t i = rows.begin; i < rows.end; i += step) {
    const Range depth = together ? any : seen[i];
    const int64_t terms = depth.end - depth.begin;
    const T* const a = weights.data + (i - rows.begin) * weights.line + depth.begin * weights.depth;
    if (!x.laid_out) {
      tile_gemm({.m = 1, .n = x.width, .k = terms, .ldb = x.rows.stride}, factor, a, x.rows[depth.begin],
                T(1), y[i]);
      continue;
    }
    for (int64_t c = 0; c < x.width; c += panel_size<T>().columns) {
      multiply_panel(step, terms, factor, {a, weights.line, weights.depth}, x.rows[depth.begin] + c,
                     x.rows.stride, y[i] + c, y.stride, true);
    }
  }
}

/// Calls body(begin, end) for whole vectors around what a row of scores sees. Its neighbours that this takes
/// in get -inf: they change neither a maximum nor a sum of exp(score).
template <class T, class Body>
void for_seen(Range seen, T* scores, const Body& body) {
  if (seen.begin == seen.end) return;
  const int64_t begin = seen.begin / vector_lanes * vector_lanes;
  const int64_t end = (seen.end + vector_lanes - 1) / vector_lanes * vector_lanes;
  std::fill(scores + begin, scores + seen.begin, -std::numeric_limits<T>::infinity());
  std::fill(scores + seen.end, scores + end, -std::numeric_limits<T>::infinity());
  body(begin, end);
}

/// Weights of what a row doesn't see become 0, whatever they were.
template <class T>
void clear_unseen(Range seen, int64_t columns, T* weights) {
  if (seen.begin == 0 && seen.end == columns) return;
  std::fill(weights, weights + seen.begin, T(0));
  std::fill(weights + seen.end, weights + columns, T(0));
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
  /// of_key for neighbouring keys.
  void of_keys(int64_t batch, int64_t head, int64_t key, int64_t count, double* decays) const {
    for (int64_t j = 0; s.decay != nullptr && j < count; ++j) decays[j] = of_key(batch, head, key + j);
  }
  /// Adds to the scores that a query has with the keys that it sees what their decays differ by.
  template <class T>
  void add(int64_t batch, int64_t head, int64_t query, const double* of_keys, Range seen, T* scores) const {
    if (s.decay == nullptr) return;
    const double mine = of_head(batch, head)[query + s.keys - s.queries];
    for (int64_t j = seen.begin; j < seen.end; ++j) scores[j] += static_cast<T>(mine - of_keys[j]);
  }
};

/// A task: neighbouring tokens of one head of one sample.
struct Task {
  int64_t batch, head, first, rows;
};

/// Calls body(task) for tasks that cover batch x heads x tokens, in parallel.
template <class Body>
void for_each_task(int64_t batch, int64_t heads, int64_t tokens, const Body& body) {
  const int64_t tasks = (tokens + task_rows - 1) / task_rows;
  parallel_tasks(batch * heads * tasks, [&](int64_t index) {
    const int64_t first = index % tasks * task_rows;
    body(Task{index / tasks / heads, index / tasks % heads, first, std::min(task_rows, tokens - first)});
  });
}

template <class T>
Rows<T> rows_of(Heads<T> x, int64_t batch, int64_t token, int64_t head) {
  return {x.at(batch, token, head), x.token_stride};
}

template <class T>
void clear(int64_t rows, int64_t width, Rows<T> x) {
  for (int64_t i = 0; i < rows; ++i) std::fill_n(x[i], width, T(0));
}

/// y = factor x
template <class T>
void scale_row(int64_t width, T factor, const T* x, T* y) {
  for (int64_t c = 0; c < width; ++c) y[c] = factor * x[c];
}

/// 1 / sum; 0 for the sum of nothing.
template <class T>
T inverse(T sum) {
  return sum == 0 ? T(0) : 1 / sum;
}

}  // namespace

namespace {

/// The softmax of rows of scores as far as their keys are known.
template <class T>
struct RunningSoftmax {
  T* maximum;
  T* sum;     // of exp(score - maximum)
  Rows<T> o;  // of exp(score - maximum) v
  int64_t width;

  /// Takes in a row's scores, which become exp(score - maximum).
  void add(int64_t row, Range seen, T* scores) const {
    for_seen(seen, scores, [&](int64_t begin, int64_t end) {
      T* const score = scores + begin;
      const T before = maximum[row];
      const T now = std::max(before, row_maximum(end - begin, score));
      if (now > before) {  // what was summed up so far was relative to the maximum so far
        const T correction = vector_exp(before - now);
        maximum[row] = now;
        sum[row] *= correction;
        scale_row(width, correction, o[row], o[row]);
      }
      for (int64_t j = 0; j < end - begin; ++j) score[j] = vector_exp(score[j] - now);
      sum[row] += row_sum<T>(end - begin, [=](int64_t j) { return score[j]; });
    });
  }
};

}  // namespace

template <class T>
void attention_forward(Cpu, const AttentionShape& s, Heads<const T> q, Heads<const T> k, Heads<const T> v,
                       const int32_t* key_mask, Heads<T> o, T* maximum, T* sum) {
  const Visibility visible(s, key_mask);
  Scratch<T> k_copy(visible.copy_elements(s.key_dim)), v_copy(visible.copy_elements(s.value_dim));
  k = visible.gather(k, k_copy.data());
  v = visible.gather(v, v_copy.data());
  const Decays decays{s, visible};
  const bool lays_out = s.queries >= least_rows_to_lay_out;
  const int64_t q_room = Operand<T>::room_size(task_rows, s.key_dim);
  const int64_t k_room = Columns<T>::room_size(forward_columns, s.key_dim);
  const int64_t v_room = Operand<T>::room_size(forward_columns, s.value_dim);
  const int64_t o_width = padded<T>(s.value_dim);
  ThreadRoom<T> room(q_room + k_room + v_room + task_rows * o_width);

  for_each_task(s.batch, s.heads, s.queries, [&](const Task& task) {
    const int64_t key_head = task.head / (s.heads / s.key_heads);
    const int64_t row = (task.batch * s.heads + task.head) * s.queries + task.first;
    Tiles<T> tiles(room.mine());
    const Operand<T> q_rows(task.rows, s.key_dim, rows_of(q, task.batch, task.first, task.head),
                            tiles.vector(q_room));
    T* const k_panels = lays_out ? tiles.vector(k_room) : nullptr;
    T* const v_rows = lays_out ? tiles.vector(v_room) : nullptr;
    const RunningSoftmax<T> softmax{maximum + row, sum + row, tiles.matrix(task_rows, o_width), s.value_dim};
    std::fill_n(softmax.maximum, task.rows, std::numeric_limits<T>::lowest());
    std::fill_n(softmax.sum, task.rows, T(0));
    clear(task.rows, o_width, softmax.o);

    Seen all;
    for (int64_t i = 0; i < task.rows; ++i) all[i] = visible.keys_of(task.batch, task.first + i);
    const int64_t end = all[task.rows - 1].end;
    for (int64_t key = all[0].begin; key < end; key += forward_columns) {
      const int64_t columns = std::min(forward_columns, end - key);
      const Seen seen = part_of(all, task.rows, key, columns);
      const Columns<T> k_tile(columns, s.key_dim, rows_of(k, task.batch, key, key_head), k_panels);
      const Operand<T> v_tile(columns, s.value_dim, rows_of(v, task.batch, key, key_head), v_rows);
      double key_decays[forward_columns];
      decays.of_keys(task.batch, task.head, key, columns, key_decays);
      for_each_block<T>(task.rows, [&](Range rows) {
        const Range any = seen_by_any(seen, rows);
        if (any.begin >= any.end) return;
        alignas(64) T memory[MicroKernels::most_rows * forward_columns];
        const Rows<T> p{memory, forward_columns};
        dot_products(rows.end - rows.begin, any, T(s.scale), q_rows.rows.from(rows.begin), k_tile, p);
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          T* const scores = p[i - rows.begin];
          decays.add(task.batch, task.head, task.first + i, key_decays, seen[i], scores);
          softmax.add(i, seen[i], scores);
          clear_unseen(seen[i], columns, scores);
        }
        add_seen<T>(seen, rows, 1, {p.data, p.stride, 1}, v_tile, softmax.o);
      });
    }
    const Rows<T> o_rows = rows_of(o, task.batch, task.first, task.head);
    for (int64_t i = 0; i < task.rows; ++i)
      scale_row(s.value_dim, inverse(softmax.sum[i]), softmax.o[i], o_rows[i]);
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
      const T *const a = o_rows[i], *const b = d_o_rows[i];
      inverse_sum[row] = inverse(sum[row]);
      slope[row] = seen.end - seen.begin == 1 ? T(0) : inverse_sum[row];
      delta[row] = row_sum<T>(s.value_dim, [=](int64_t c) { return a[c] * b[c]; });
    }
  });
}

/// Memory for the operands and results of one head: all queries, a tile of keys.
template <class T>
struct BackwardRoom {
  T *q, *d_o, *k, *k_columns, *v_columns;
  Rows<T> dq, dk, dv, p, ds;

  BackwardRoom(const AttentionShape& s, T* room) {
    Tiles<T> tiles(room);
    q = tiles.vector(Operand<T>::room_size(s.queries, s.key_dim));
    d_o = tiles.vector(Operand<T>::room_size(s.queries, s.value_dim));
    k = tiles.vector(Operand<T>::room_size(tile_columns, s.key_dim));
    k_columns = tiles.vector(Columns<T>::room_size(tile_columns, s.key_dim));
    v_columns = tiles.vector(Columns<T>::room_size(tile_columns, s.value_dim));
    dq = tiles.matrix(s.queries, padded<T>(s.key_dim));
    dk = tiles.matrix(tile_columns, padded<T>(s.key_dim));
    dv = tiles.matrix(tile_columns, padded<T>(s.value_dim));
    p = tiles.matrix(tile_rows, tile_columns);
    ds = tiles.matrix(tile_rows, tile_columns);
  }
  static int64_t size(const AttentionShape& s) {
    return (2 * s.queries + 3 * tile_columns) * Operand<T>::room_size(1, s.key_dim) +
           (s.queries + 2 * tile_columns) * Operand<T>::room_size(1, s.value_dim) +
           2 * tile_rows * tile_columns;
  }
};

/// A tile of keys: k and v as the products with queries need them.
template <class T>
struct KeyTile {
  int64_t first, count;
  Columns<T> k_columns, v_columns;
  Operand<T> k;
};

/// p = P and ds = dS for the queries of a tile and a tile of keys; 0 for keys that a query doesn't see.
template <class T>
void weights(const Saved<T>& saved, int64_t batch, int64_t head, int64_t query, int64_t rows,
             const Seen& seen, const Operand<T>& q, const Operand<T>& d_o, const KeyTile<T>& keys, Rows<T> p,
             Rows<T> ds) {
  const AttentionShape& s = saved.shape;
  const Decays decays{s, saved.visible};
  double key_decays[tile_columns];
  decays.of_keys(batch, head, keys.first, keys.count, key_decays);
  for_each_block<T>(rows, [&](Range block) {
    const Range any = seen_by_any(seen, block);
    if (any.begin < any.end) {
      const int64_t count = block.end - block.begin;
      dot_products(count, any, T(s.scale), q.rows.from(block.begin), keys.k_columns, p.from(block.begin));
      dot_products(count, any, T(1), d_o.rows.from(block.begin), keys.v_columns, ds.from(block.begin));
    }
    for (int64_t i = block.begin; i < block.end; ++i) {
      decays.add(batch, head, query + i, key_decays, seen[i], p[i]);
      for_seen(seen[i], p[i], [&](int64_t begin, int64_t end) {
        const int64_t row = saved.row(batch, head, query + i);
        const T maximum = saved.maximum[row], inverse_sum = saved.inverse_sum[row];
        const T slope = saved.slope[row], delta = saved.delta[row];
        T *const score = p[i], *const slopes = ds[i];
        for (int64_t j = begin; j < end; ++j) {
          const T e = vector_exp(score[j] - maximum);
          score[j] = inverse_sum * e;
          slopes[j] = slope * e * (slopes[j] - delta);
        }
      });
      clear_unseen(seen[i], tile_columns, p[i]);
      clear_unseen(seen[i], tile_columns, ds[i]);
    }
  });
}

/// The gradients of one head's queries, and its part of those of its key head: tiles of keys against the
/// queries that see them.
template <class T>
void backward_head(const Saved<T>& saved, int64_t batch, int64_t head, Heads<T> dq, Heads<T> dk, Heads<T> dv,
                   double* score_sums, T* memory) {
  const AttentionShape& s = saved.shape;
  const BackwardRoom<T> room(s, memory);
  const bool lays_out = s.queries >= least_rows_to_lay_out;
  const int64_t key_head = head / (s.heads / s.key_heads);
  const Operand<T> q(s.queries, s.key_dim, rows_of(saved.q, batch, 0, head), room.q);
  const Operand<T> d_o(s.queries, s.value_dim, rows_of(saved.d_o, batch, 0, head), room.d_o);
  clear(s.queries, room.dq.stride, room.dq);
  if (score_sums != nullptr) std::fill_n(score_sums + (batch * s.heads + head) * s.keys, s.keys, 0.0);
  const int64_t all_keys = saved.visible.keys(batch);
  for (int64_t key = 0; key < all_keys; key += tile_columns) {
    const int64_t count = std::min(tile_columns, all_keys - key);
    const Rows<const T> k = rows_of(saved.k, batch, key, key_head),
                        v = rows_of(saved.v, batch, key, key_head);
    const KeyTile<T> keys{.first = key,
                          .count = count,
                          .k_columns{count, s.key_dim, k, lays_out ? room.k_columns : nullptr},
                          .v_columns{count, s.value_dim, v, lays_out ? room.v_columns : nullptr},
                          .k{count, s.key_dim, k, room.k}};
    clear(count, room.dk.stride, room.dk);
    clear(count, room.dv.stride, room.dv);
    Seen queries;
    for (int64_t j = 0; j < count; ++j) queries[j] = saved.visible.queries_of(batch, key + j);
    const int64_t end = queries[count - 1].end;
    for (int64_t query = queries[0].begin; query < end; query += tile_rows) {
      const int64_t rows = std::min(tile_rows, end - query);
      const Seen seen_by = part_of(queries, count, query, rows);
      const Seen seen = transposed(seen_by, count, rows);
      weights(saved, batch, head, query, rows, seen, q.from(query), d_o.from(query), keys, room.p, room.ds);
      for (int64_t i = 0; score_sums != nullptr && i < rows; ++i) {
        double* const sums = score_sums + (batch * s.heads + head) * s.keys;
        for (int64_t j = seen[i].begin; j < seen[i].end; ++j)
          sums[saved.visible.place_of(batch, key + j)] += room.ds[i][j];
      }
      for_each_block<T>(count, [&](Range block) {
        const T *const p = room.p.data + block.begin, *const ds = room.ds.data + block.begin;
        add_seen<T>(seen_by, block, 1, {p, 1, tile_columns}, d_o.from(query), room.dv);
        add_seen<T>(seen_by, block, T(s.scale), {ds, 1, tile_columns}, q.from(query), room.dk);
      });
      for_each_block<T>(rows, [&](Range block) {
        add_seen<T>(seen, block, T(s.scale), {room.ds[block.begin], tile_columns, 1}, keys.k,
                    room.dq.from(query));
      });
    }
    const Rows<T> dk_rows = rows_of(dk, batch, key, key_head), dv_rows = rows_of(dv, batch, key, key_head);
    for (int64_t j = 0; j < count; ++j) {
      add_scaled(s.key_dim, T(1), room.dk[j], dk_rows[j]);
      add_scaled(s.value_dim, T(1), room.dv[j], dv_rows[j]);
    }
  }
  const Rows<T> dq_rows = rows_of(dq, batch, 0, head);
  for (int64_t i = 0; i < s.queries; ++i) std::copy_n(room.dq[i], s.key_dim, dq_rows[i]);
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
  ThreadRoom<T> room(BackwardRoom<T>::size(s));
  const int64_t group = s.heads / s.key_heads;
  parallel_tasks(s.batch * s.key_heads, [&](int64_t index) {
    const int64_t batch = index / s.key_heads, key_head = index % s.key_heads;
    clear(visible.keys(batch), s.key_dim, rows_of(dk_kept, batch, 0, key_head));
    clear(visible.keys(batch), s.value_dim, rows_of(dv_kept, batch, 0, key_head));
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head)
      backward_head(saved, batch, head, dq, dk_kept, dv_kept, score_sums, room.mine());
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
