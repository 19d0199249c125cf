// The additive recurrence on the CPU. A task is one chunk of one head; its matrices fit into the caches, and
// its products are tiles, each computed by one thread.
#include "tensor/kernels/recurrence.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "tensor/allocator.h"
#include "tensor/cpu/blas.h"
#include "tensor/cpu/reduce.h"
#include "tensor/cpu/vector_exp.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

/// A matrix in memory by its first element and the distance between its rows.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;

  T* operator[](int64_t row) const { return data + row * stride; }
  /// Without the first rows and columns.
  Rows from(int64_t row, int64_t column = 0) const { return {data + row * stride + column, stride}; }
  operator Rows<const T>() const { return {data, stride}; }
};

/// The rows of one head in the tokens of a chunk.
template <class T>
Rows<T> rows_of(const Heads<T>& heads, const Chunk& chunk, int64_t head) {
  return {heads.at(chunk.row, chunk.start, head), heads.token_stride};
}

/// One number for each query and head, [B, T, H]: those of one head in the tokens of a chunk.
template <class T>
Rows<T> scalars_of(T* values, const RecurrenceShape& s, const Chunk& chunk, int64_t head) {
  return {values + (chunk.row * s.queries + chunk.start) * s.heads + head, s.heads};
}

/// c = alpha a b + beta c, with a [m, k] and b [k, n].
template <class T>
void multiply(int64_t m, int64_t n, int64_t k, T alpha, Rows<const T> a, Rows<const T> b, T beta, Rows<T> c) {
  tile_gemm<T>({.m = m, .n = n, .k = k, .lda = a.stride, .ldb = b.stride, .ldc = c.stride}, alpha, a.data,
               b.data, beta, c.data);
}

/// c = alpha a b^T + beta c, with a [m, k] and b [n, k].
template <class T>
void multiply_bt(int64_t m, int64_t n, int64_t k, T alpha, Rows<const T> a, Rows<const T> b, T beta,
                 Rows<T> c) {
  tile_gemm<T>(
      {.m = m, .n = n, .k = k, .b = Transpose::yes, .lda = a.stride, .ldb = b.stride, .ldc = c.stride}, alpha,
      a.data, b.data, beta, c.data);
}

/// c = alpha a^T b + beta c, with a [k, m] and b [k, n].
template <class T>
void multiply_at(int64_t m, int64_t n, int64_t k, T alpha, Rows<const T> a, Rows<const T> b, T beta,
                 Rows<T> c) {
  tile_gemm<T>(
      {.m = m, .n = n, .k = k, .a = Transpose::yes, .lda = a.stride, .ldb = b.stride, .ldc = c.stride}, alpha,
      a.data, b.data, beta, c.data);
}

template <class T>
T dot(int64_t n, const T* a, const T* b) {
  return row_sum<T>(n, [=](int64_t i) { return a[i] * b[i]; });
}

template <class T>
void add_scaled(int64_t n, T factor, const T* x, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

// Products with lower triangular matrices [C, C] go by blocks of rows, so that what lies above a diagonal
// block is never computed nor read. That saves three eighths of the work of a chunk of 64, and keeps a NaN
// from the tokens before its block. Inside a diagonal block zeros are selected, not multiplied.

/// Calls body(begin, end) for each block of rows.
template <class Body>
void for_row_blocks(int64_t length, const Body& body) {
  constexpr int64_t block = 16;
  for (int64_t begin = 0; begin < length; begin += block) body(begin, std::min(begin + block, length));
}

/// lower = alpha times the lower triangle of a b^T; a and b [C, dim].
template <class T>
void lower_product(int64_t length, int64_t dim, T alpha, Rows<const T> a, Rows<const T> b, Rows<T> lower) {
  for_row_blocks(length, [&](int64_t begin, int64_t end) {
    multiply_bt<T>(end - begin, end, dim, alpha, a.from(begin), b, 0, lower.from(begin));
    for (int64_t i = begin; i < end; ++i) std::fill(lower[i] + i + 1, lower[i] + end, T(0));
  });
}

/// y = alpha lower x + beta y; x and y [C, columns].
template <class T>
void lower_times(int64_t length, int64_t columns, T alpha, Rows<const T> lower, Rows<const T> x, T beta,
                 Rows<T> y) {
  for_row_blocks(length, [&](int64_t begin, int64_t end) {
    multiply<T>(end - begin, columns, end, alpha, lower.from(begin), x, beta, y.from(begin));
  });
}

/// y = alpha lower^T x + beta y; x and y [C, columns].
template <class T>
void lower_transposed_times(int64_t length, int64_t columns, T alpha, Rows<const T> lower, Rows<const T> x,
                            T beta, Rows<T> y) {
  for_row_blocks(length, [&](int64_t begin, int64_t end) {
    multiply_at<T>(end - begin, columns, length - begin, alpha, lower.from(begin, begin), x.from(begin), beta,
                   y.from(begin));
  });
}

/// b: in every chunk, the sum of the log decays up to and including each token. In double: differences of
/// large sums become exponents.
class CumulativeDecay {
 public:
  /// Without log_decay there is no gate.
  template <class T>
  CumulativeDecay(const RecurrenceShape& s, const ChunkPlan& plan, const T* log_decay)
      : s_(s), gated_(log_decay != nullptr), sums_(gated_ ? s.batch * s.heads * s.keys : 0) {
    if (!gated_) return;
    parallel_tasks(static_cast<int64_t>(plan.chunks.size()), [&](int64_t c) {
      const Chunk& chunk = plan.chunks[c];
      for (int64_t head = 0; head < s.heads; ++head) {
        double* b = at(chunk, head);
        double sum = 0;
        for (int64_t i = 0; i < chunk.length; ++i) {
          const double g = log_decay[((chunk.row * s.keys) + chunk.start + i) * s.heads + head];
          b[i] = sum += std::max(g, least_log_decay);
        }
      }
    });
  }

  /// b of a chunk's tokens; null when there is no gate.
  const double* of(const Chunk& chunk, int64_t head) { return gated_ ? at(chunk, head) : nullptr; }
  /// e^{b_C}
  double of_whole(const Chunk& chunk, int64_t head) {
    return gated_ && chunk.length > 0 ? std::exp(at(chunk, head)[chunk.length - 1]) : 1;
  }

 private:
  double* at(const Chunk& chunk, int64_t head) {
    return sums_.data() + (head * s_.batch + chunk.row) * s_.keys + chunk.start;
  }

  RecurrenceShape s_;
  bool gated_;
  Scratch<double> sums_;
};

/// matrix_ij *= e^{b_i - b_j} in the lower triangle. Only these exponents, none above 0, are formed.
template <class T>
void decay_lower(int64_t length, const double* b, Rows<T> matrix) {
  for (int64_t i = 0; i < length; ++i) {
    T* row = matrix[i];
    const double b_i = b[i];
    for (int64_t j = 0; j <= i; ++j) row[j] *= vector_exp(static_cast<T>(b_i - b[j]));
  }
}

/// The decayed Gram matrix A_ij = scale q_i . k_j e^{b_i - b_j} for j <= i. b may be null: no gate.
template <class T>
void decayed_gram(int64_t length, int64_t dim, T scale, Rows<const T> q, Rows<const T> k, const double* b,
                  Rows<T> gram) {
  lower_product<T>(length, dim, scale, q, k, gram);
  if (b != nullptr) decay_lower(length, b, gram);
}

/// log_decay_t is part of every exponent b_i - b_j with j < t <= i, so dlog_decay_t is the sum of gram_ij
/// dgram_ij over those pairs, C^2 terms for all t together. The usual reverse sum of q . dq - k . dk is the
/// same in exact arithmetic but cancels in float, completely where the gates are strong. column: room for C
/// numbers.
template <class T>
void gate_pairs(int64_t length, Rows<const T> gram, Rows<const T> dgram, T* column, T* dlog_decay) {
  std::fill_n(column, length, T(0));
  for (int64_t t = length - 1; t >= 0; --t) {
    const T* a = gram[t];
    const T* da = dgram[t];
#pragma omp simd
    for (int64_t j = 0; j < t; ++j) column[j] += a[j] * da[j];
    dlog_decay[t] = row_sum<T>(t, [=](int64_t j) { return column[j]; });
  }
}

/// From the gradient of the decayed Gram matrix, which is overwritten, to those of q and k, with dq and dk
/// multiplied by beta first, and, where there is a gate, of the log decays.
template <class T>
void decayed_gram_backward(int64_t length, int64_t dim, T scale, Rows<const T> q, Rows<const T> k,
                           const double* b, Rows<const T> gram, Rows<T> dgram, T beta, Rows<T> dq, Rows<T> dk,
                           T* column, T* dlog_decay) {
  if (b != nullptr) {
    gate_pairs<T>(length, gram, dgram, column, dlog_decay);
    decay_lower(length, b, dgram);
  }
  lower_times<T>(length, dim, scale, dgram, k, beta, dq);
  lower_transposed_times<T>(length, dim, scale, dgram, q, beta, dk);
}

/// What is left of the state before the chunk when token i reads it: e^{b_i}.
template <class T>
T decay_since_start(const double* b, int64_t i) {
  return b == nullptr ? T(1) : static_cast<T>(std::exp(b[i]));
}

/// What is left at the chunk's end of what token j wrote: e^{b_C - b_j}.
template <class T>
T decay_until_end(const double* b, int64_t length, int64_t j) {
  return b == nullptr ? T(1) : static_cast<T>(std::exp(b[length - 1] - b[j]));
}

/// One head's part of a chunk.
struct Piece {
  int64_t index;  // of the chunk in the plan
  const Chunk& chunk;
  int64_t head;
  const double* b;  // cumulative log decays; null: no gate

  int64_t length() const { return chunk.length; }
};

/// Where the state before a chunk stands; null: it is zero, or nobody wants it.
template <class T>
struct StateBefore {
  const ChunkPlan& plan;
  int64_t heads, size;
  T* initial;  // [B, H, size] or null
  T* between;  // [plan.states, H, size]

  T* operator()(const Piece& p) const { return at(p.index, p.head); }
  T* at(int64_t c, int64_t head) const {
    const Chunk& chunk = plan.chunks[c];
    if (!chunk.first) return between + (chunk.state * heads + head) * size;
    return initial == nullptr ? nullptr : initial + (chunk.row * heads + head) * size;
  }
};

/// Where the state after a chunk stands; null: as above.
template <class T>
struct StateAfter {
  const ChunkPlan& plan;
  int64_t heads, size;
  T* between;
  T* final;  // [B, H, size] or null

  T* operator()(const Piece& p) const { return at(p.index, p.head); }
  T* at(int64_t c, int64_t head) const {
    const Chunk& chunk = plan.chunks[c];
    if (!chunk.last) return between + (plan.chunks[c + 1].state * heads + head) * size;
    return final == nullptr ? nullptr : final + (chunk.row * heads + head) * size;
  }
};

/// Calls body(row, head), in parallel.
template <class Body>
void for_each_sequence(const ChunkPlan& plan, int64_t heads, const Body& body) {
  const auto rows = static_cast<int64_t>(plan.row_begin.size()) - 1;
  parallel_tasks(rows * heads, [&](int64_t task) { body(task / heads, task % heads); });
}

/// state after += e^{b_C} state before, along each row: turns what each chunk adds into the states.
template <class T>
void scan_states(CumulativeDecay& decay, const StateBefore<const T>& before, const StateAfter<T>& after) {
  const ChunkPlan& plan = after.plan;
  for_each_sequence(plan, after.heads, [&](int64_t row, int64_t head) {
    for (int64_t c = plan.row_begin[row]; c < plan.row_begin[row + 1]; ++c) {
      const T* from = before.at(c, head);
      T* to = after.at(c, head);
      if (from == nullptr || to == nullptr) continue;
      add_scaled(after.size, static_cast<T>(decay.of_whole(plan.chunks[c], head)), from, to);
    }
  });
}

/// Its backward: dstate before += e^{b_C} dstate after, from the end of each row.
template <class T>
void scan_states_backward(CumulativeDecay& decay, const StateBefore<T>& dbefore,
                          const StateAfter<const T>& dafter) {
  const ChunkPlan& plan = dbefore.plan;
  for_each_sequence(plan, dbefore.heads, [&](int64_t row, int64_t head) {
    for (int64_t c = plan.row_begin[row + 1] - 1; c >= plan.row_begin[row]; --c) {
      const T* from = dafter.at(c, head);
      T* to = dbefore.at(c, head);
      if (from == nullptr || to == nullptr) continue;
      add_scaled(dbefore.size, static_cast<T>(decay.of_whole(plan.chunks[c], head)), from, to);
    }
  });
}

/// Memory for the tiles of the task that a thread is at.
template <class T>
class ThreadRoom {
 public:
  explicit ThreadRoom(int64_t size)
      : size_((size + 15) / 16 * 16), room_(size_ * omp_get_max_threads()) {}  // whole cache lines each

  T* mine() { return room_.data() + size_ * omp_get_thread_num(); }

 private:
  int64_t size_;
  Scratch<T> room_;
};

/// Cuts tiles from a task's room.
template <class T>
class Tiles {
 public:
  explicit Tiles(T* room) : next_(room) {}

  T* vector(int64_t size) {
    T* start = next_;
    next_ += size;
    return start;
  }
  Rows<T> matrix(int64_t rows, int64_t columns) { return {vector(rows * columns), columns}; }

 private:
  T* next_;
};

/// Gradients of numerators and denominators of a chunk's outputs o_i = num_i / den_i.
template <class T>
struct RatioGradients {
  Rows<const T> dnum;  // do / den; do itself where there is no denominator
  Rows<const T> dden;  // -(do . o) / den, one number a row; null likewise
};

template <class T>
RatioGradients<T> ratio_backward(int64_t length, int64_t dim, Rows<const T> o, Rows<const T> denominators,
                                 Rows<const T> dout, Rows<T> dnum, Rows<T> dden) {
  for (int64_t i = 0; i < length; ++i) {
    const T inverse = 1 / *denominators[i];
    *dden[i] = -inverse * dot(dim, dout[i], o[i]);
    for (int64_t e = 0; e < dim; ++e) dnum[i][e] = inverse * dout[i][e];
  }
  return {dnum, dden};
}

/// What the forward and the backward pass of the causal form have in common.
template <class T>
class CausalPass {
 public:
  CausalPass(const RecurrenceShape& s, const ChunkPlan& plan, const RecurrenceInputs<T>& in, const T* states,
             const T* normalisers, int64_t room)
      : s_(s),
        plan_(plan),
        in_(in),
        scale_(static_cast<T>(s.scale)),
        decay_(s, plan, in.log_decay),
        state_before_{plan, s.heads, s.key_dim * s.value_dim, in.state, states},
        normaliser_before_{plan, s.heads, s.key_dim, in.normaliser, normalisers},
        room_(room) {}

 protected:
  /// Calls body(piece) for every chunk and head, in parallel.
  template <class Body>
  void for_each_piece(const Body& body) {
    for_each_chunk(s_.heads, [&](int64_t c, int64_t head) { body(piece(c, head)); });
  }

  /// The same, but with the heads that share a key head one after the other; `leads` tells the first of them.
  template <class Body>
  void for_each_group(const Body& body) {
    for_each_chunk(s_.key_heads, [&](int64_t c, int64_t key_head) {
      for (int64_t i = 0; i < group(); ++i) body(piece(c, key_head * group() + i), i == 0);
    });
  }

  int64_t group() const { return s_.heads / s_.key_heads; }
  Rows<const T> q(const Piece& p) const { return rows_of(in_.q, p.chunk, p.head / group()); }
  Rows<const T> k(const Piece& p) const { return rows_of(in_.k, p.chunk, p.head / group()); }
  Rows<const T> v(const Piece& p) const { return rows_of(in_.v, p.chunk, p.head); }

  /// Q e^b: queries as they read the state before the chunk. room: [C, dk].
  Rows<const T> reading_queries(const Piece& p, T* room) const {
    return scaled_rows(p, q(p), room, [&](int64_t i) { return decay_since_start<T>(p.b, i); });
  }
  /// K e^{b_C - b}: keys as they write the state after the chunk.
  Rows<const T> writing_keys(const Piece& p, T* room) const {
    return scaled_rows(p, k(p), room, [&](int64_t j) { return decay_until_end<T>(p.b, p.length(), j); });
  }

  template <class U>
  Rows<U> scalars(U* values, const Piece& p) const {
    return scalars_of(values, s_, p.chunk, p.head);
  }

  const RecurrenceShape& s_;
  const ChunkPlan& plan_;
  const RecurrenceInputs<T>& in_;
  const T scale_;
  CumulativeDecay decay_;
  const StateBefore<const T> state_before_;
  const StateBefore<const T> normaliser_before_;  // for normalised outputs only
  ThreadRoom<T> room_;

 private:
  template <class Body>
  void for_each_chunk(int64_t heads, const Body& body) {
    const auto chunks = static_cast<int64_t>(plan_.chunks.size());
    parallel_tasks(chunks * heads, [&](int64_t task) { body(task / heads, task % heads); });
  }

  Piece piece(int64_t c, int64_t head) {
    return {c, plan_.chunks[c], head, decay_.of(plan_.chunks[c], head)};
  }

  /// Rows of x, each times factor(row); x itself where there is no gate.
  template <class Factor>
  Rows<const T> scaled_rows(const Piece& p, Rows<const T> x, T* room, const Factor& factor) const {
    if (p.b == nullptr) return x;
    const Rows<T> y{room, s_.key_dim};
    for (int64_t i = 0; i < p.length(); ++i) {
      const T f = factor(i);
      for (int64_t m = 0; m < s_.key_dim; ++m) y[i][m] = f * x[i][m];
    }
    return y;
  }
};

template <class T>
class CausalForward : CausalPass<T> {
  using Base = CausalPass<T>;
  using Base::s_, Base::scale_, Base::decay_, Base::room_, Base::state_before_, Base::normaliser_before_;

 public:
  CausalForward(const RecurrenceShape& s, const ChunkPlan& plan, const RecurrenceInputs<T>& in,
                const RecurrenceOutputs<T>& out)
      : Base(s, plan, in, out.states, out.normalisers, plan.longest * (plan.longest + s.key_dim)),
        out_(out),
        state_after_{plan, s.heads, s.key_dim * s.value_dim, out.states, out.state},
        normaliser_after_{plan, s.heads, s.key_dim, out.normalisers, out.normaliser} {}

  void run() {
    this->for_each_piece([&](const Piece& p) { write(p); });
    scan_states(decay_, state_before_, state_after_);
    if (s_.normalise) scan_states(decay_, normaliser_before_, normaliser_after_);
    this->for_each_group([&](const Piece& p, bool leads) { read(p, leads); });
  }

 private:
  /// What the chunk adds to the state: (K e^{b_C - b})^T V.
  void write(const Piece& p) {
    T* state = state_after_(p);
    if (state == nullptr) return;
    const Rows<const T> k = this->writing_keys(p, room_.mine());
    multiply_at<T>(s_.key_dim, s_.value_dim, p.length(), 1, k, this->v(p), 0, {state, s_.value_dim});
    if (!s_.normalise) return;
    T* normaliser = normaliser_after_(p);
    std::fill_n(normaliser, s_.key_dim, T(0));
    for (int64_t j = 0; j < p.length(); ++j) add_scaled<T>(s_.key_dim, 1, k[j], normaliser);
  }

  /// The outputs: A V + scale (Q e^b) S.
  void read(const Piece& p, bool leads) {
    Tiles<T> tiles(room_.mine());
    const Rows<T> gram = tiles.matrix(p.length(), p.length());
    // Without a gate the heads of a group share their Gram matrix: it is still there.
    if (leads || p.b != nullptr) {
      decayed_gram<T>(p.length(), s_.key_dim, scale_, this->q(p), this->k(p), p.b, gram);
    }
    const Rows<T> o = rows_of(out_.o, p.chunk, p.head);
    lower_times<T>(p.length(), s_.value_dim, 1, gram, this->v(p), 0, o);
    const Rows<const T> q = this->reading_queries(p, tiles.vector(p.length() * s_.key_dim));
    if (const T* state = state_before_(p)) {
      multiply<T>(p.length(), s_.value_dim, s_.key_dim, scale_, q, {state, s_.value_dim}, 1, o);
    }
    if (s_.normalise) normalise(p, gram, q, o);
  }

  void normalise(const Piece& p, Rows<const T> gram, Rows<const T> q, Rows<T> o) {
    const T* normaliser = normaliser_before_(p);
    const Rows<T> denominators = this->scalars(out_.denominators, p);
    for (int64_t i = 0; i < p.length(); ++i) {
      T denominator = row_sum<T>(i + 1, [&](int64_t j) { return gram[i][j]; }) + static_cast<T>(s_.eps);
      if (normaliser != nullptr) denominator += scale_ * dot(s_.key_dim, q[i], normaliser);
      *denominators[i] = denominator;
      for (int64_t e = 0; e < s_.value_dim; ++e) o[i][e] /= denominator;
    }
  }

  const RecurrenceOutputs<T>& out_;
  const StateAfter<T> state_after_;
  const StateAfter<T> normaliser_after_;
};

template <class T>
class CausalBackward : CausalPass<T> {
  using Base = CausalPass<T>;
  using Base::s_, Base::scale_, Base::decay_, Base::room_, Base::state_before_, Base::normaliser_before_;

 public:
  CausalBackward(const RecurrenceShape& s, const ChunkPlan& plan, const RecurrenceInputs<T>& in,
                 const RecurrenceOutputs<const T>& out, const RecurrenceOutputGradients<T>& dout,
                 const RecurrenceInputGradients<T>& din)
      : Base(s, plan, in, out.states, out.normalisers,
             plan.longest * (2 * plan.longest + s.key_dim + s.value_dim + 3)),
        out_(out),
        dout_(dout),
        din_(din),
        dstates_(plan.states * s.heads * s.key_dim * s.value_dim),
        dnormalisers_(s.normalise ? plan.states * s.heads * s.key_dim : 0),
        dstate_before_{plan, s.heads, s.key_dim * s.value_dim, din.state, dstates_.data()},
        dnormaliser_before_{plan, s.heads, s.key_dim, din.normaliser, dnormalisers_.data()},
        dstate_after_{plan, s.heads, s.key_dim * s.value_dim, dstates_.data(), dout.state},
        dnormaliser_after_{plan, s.heads, s.key_dim, dnormalisers_.data(), dout.normaliser} {}

  void run() {
    this->for_each_piece([&](const Piece& p) { read_backward_to_state(p); });
    scan_states_backward(decay_, dstate_before_, dstate_after_);
    if (s_.normalise) scan_states_backward(decay_, dnormaliser_before_, dnormaliser_after_);
    this->for_each_group([&](const Piece& p, bool leads) { inputs_backward(p, leads); });
  }

 private:
  Rows<T> dq(const Piece& p) const { return rows_of(din_.q, p.chunk, p.head / this->group()); }
  Rows<T> dk(const Piece& p) const { return rows_of(din_.k, p.chunk, p.head / this->group()); }
  Rows<T> dv(const Piece& p) const { return rows_of(din_.v, p.chunk, p.head); }

  RatioGradients<T> output_gradients(const Piece& p, Tiles<T>& tiles) const {
    const Rows<const T> dout = rows_of(dout_.o, p.chunk, p.head);
    if (!s_.normalise) return {dout, {}};
    return ratio_backward<T>(p.length(), s_.value_dim, rows_of(out_.o, p.chunk, p.head),
                             this->scalars(out_.denominators, p), dout,
                             tiles.matrix(p.length(), s_.value_dim), tiles.matrix(p.length(), 1));
  }

  /// What the chunk's reads add to the gradient of the state before it: (scale Q e^b)^T dnum.
  void read_backward_to_state(const Piece& p) {
    T* dstate = dstate_before_(p);
    if (dstate == nullptr) return;
    Tiles<T> tiles(room_.mine());
    const RatioGradients<T> d = output_gradients(p, tiles);
    const Rows<const T> q = this->reading_queries(p, tiles.vector(p.length() * s_.key_dim));
    multiply_at<T>(s_.key_dim, s_.value_dim, p.length(), scale_, q, d.dnum, 0, {dstate, s_.value_dim});
    if (!s_.normalise) return;
    T* dnormaliser = dnormaliser_before_(p);
    std::fill_n(dnormaliser, s_.key_dim, T(0));
    for (int64_t i = 0; i < p.length(); ++i) add_scaled(s_.key_dim, scale_ * *d.dden[i], q[i], dnormaliser);
  }

  /// The gradients of the chunk's q, k, v and log decays, once those of the states on both sides are known.
  /// The first of a group's heads overwrites dq and dk, the others add to them.
  void inputs_backward(const Piece& p, bool leads) {
    Tiles<T> tiles(room_.mine());
    const RatioGradients<T> d = output_gradients(p, tiles);
    T* dlog_decay = tiles.vector(p.length());
    T* terms = tiles.vector(p.length());
    within_chunk_backward(p, leads, d, terms, dlog_decay, tiles);
    const Rows<T> tile = tiles.matrix(p.length(), s_.key_dim);
    if (const T* state = state_before_(p)) state_before_backward(p, d, state, tile, terms, dlog_decay);
    if (const T* dstate = dstate_after_(p)) state_after_backward(p, dstate, tile, terms, dlog_decay);
    if (p.b == nullptr) return;
    const Rows<const T> given = this->scalars(this->in_.log_decay, p);
    const Rows<T> wanted = this->scalars(din_.log_decay, p);
    for (int64_t t = 0; t < p.length(); ++t) *wanted[t] = *given[t] < least_log_decay ? T(0) : dlog_decay[t];
  }

  /// num = A V and den = the row sums of A, A the decayed Gram matrix.
  void within_chunk_backward(const Piece& p, bool leads, const RatioGradients<T>& d, T* terms, T* dlog_decay,
                             Tiles<T>& tiles) {
    const Rows<T> gram = tiles.matrix(p.length(), p.length());
    const Rows<T> dgram = tiles.matrix(p.length(), p.length());
    decayed_gram<T>(p.length(), s_.key_dim, scale_, this->q(p), this->k(p), p.b, gram);
    lower_transposed_times<T>(p.length(), s_.value_dim, 1, gram, d.dnum, 0, dv(p));
    lower_product<T>(p.length(), s_.value_dim, 1, d.dnum, this->v(p), dgram);
    if (s_.normalise) {
      for (int64_t i = 0; i < p.length(); ++i) {
        for (int64_t j = 0; j <= i; ++j) dgram[i][j] += *d.dden[i];
      }
    }
    decayed_gram_backward<T>(p.length(), s_.key_dim, scale_, this->q(p), this->k(p), p.b, gram, dgram,
                             leads ? 0 : 1, dq(p), dk(p), terms, dlog_decay);
  }

  /// Token i reads the state before the chunk, num_i = scale e^{b_i} q_i S.
  void state_before_backward(const Piece& p, const RatioGradients<T>& d, const T* state, Rows<T> tile,
                             T* terms, T* dlog_decay) {
    const T* normaliser = s_.normalise ? normaliser_before_(p) : nullptr;
    multiply_bt<T>(p.length(), s_.key_dim, s_.value_dim, scale_, d.dnum, {state, s_.value_dim}, 0, tile);
    for (int64_t i = 0; i < p.length(); ++i) {
      if (normaliser != nullptr) add_scaled(s_.key_dim, scale_ * *d.dden[i], normaliser, tile[i]);
      const T left = decay_since_start<T>(p.b, i);
      terms[i] = left * dot<T>(s_.key_dim, this->q(p)[i], tile[i]);
      add_scaled(s_.key_dim, left, tile[i], dq(p)[i]);
    }
    if (p.b == nullptr) return;
    T later = 0;  // log_decay_t is part of b_i for all i >= t
    for (int64_t t = p.length() - 1; t >= 0; --t) dlog_decay[t] += later += terms[t];
  }

  /// Token j writes into the state after the chunk, S' = e^{b_C} S + sum over j of e^{b_C - b_j} k_j^T v_j.
  void state_after_backward(const Piece& p, const T* dstate, Rows<T> tile, T* terms, T* dlog_decay) {
    const T* dnormaliser = s_.normalise ? dnormaliser_after_(p) : nullptr;
    multiply_bt<T>(p.length(), s_.key_dim, s_.value_dim, 1, this->v(p), {dstate, s_.value_dim}, 0, tile);
    for (int64_t j = 0; j < p.length(); ++j) {
      if (dnormaliser != nullptr) add_scaled<T>(s_.key_dim, 1, dnormaliser, tile[j]);
      const T left = decay_until_end<T>(p.b, p.length(), j);
      terms[j] = left * dot<T>(s_.key_dim, this->k(p)[j], tile[j]);
      add_scaled(s_.key_dim, left, tile[j], dk(p)[j]);
    }
    const Rows<const T> k = this->writing_keys(p, tile.data);
    multiply<T>(p.length(), s_.value_dim, s_.key_dim, 1, k, {dstate, s_.value_dim}, 1, dv(p));
    if (p.b == nullptr) return;
    T earlier = whole_chunk_term(p, dstate, dnormaliser);
    for (int64_t t = 0; t < p.length(); ++t) {  // log_decay_t is part of b_C - b_j for all j < t
      dlog_decay[t] += earlier;
      earlier += terms[t];
    }
  }

  /// e^{b_C} (<S, dS'> + <z, dz'>): the derivative by b_C, of which every log decay of the chunk is part.
  T whole_chunk_term(const Piece& p, const T* dstate, const T* dnormaliser) {
    T product = 0;
    if (const T* state = state_before_(p)) product += dot(s_.key_dim * s_.value_dim, state, dstate);
    const T* normaliser = s_.normalise ? normaliser_before_(p) : nullptr;
    if (normaliser != nullptr && dnormaliser != nullptr) product += dot(s_.key_dim, normaliser, dnormaliser);
    return static_cast<T>(decay_.of_whole(p.chunk, p.head)) * product;
  }

  const RecurrenceOutputs<const T>& out_;
  const RecurrenceOutputGradients<T>& dout_;
  const RecurrenceInputGradients<T>& din_;
  Scratch<T> dstates_;  // of the states between chunks
  Scratch<T> dnormalisers_;
  const StateBefore<T> dstate_before_;
  const StateBefore<T> dnormaliser_before_;
  const StateAfter<const T> dstate_after_;
  const StateAfter<const T> dnormaliser_after_;
};

}  // namespace

template <class T>
void recurrence_forward(Cpu, const RecurrenceShape& shape, const ChunkPlan& plan,
                        const RecurrenceInputs<T>& in, const RecurrenceOutputs<T>& out) {
  CausalForward<T>(shape, plan, in, out).run();
}

template <class T>
void recurrence_backward(Cpu, const RecurrenceShape& shape, const ChunkPlan& plan,
                         const RecurrenceInputs<T>& in, const RecurrenceOutputs<const T>& out,
                         const RecurrenceOutputGradients<T>& dout, const RecurrenceInputGradients<T>& din) {
  CausalBackward<T>(shape, plan, in, out, dout, din).run();
}

namespace {

/// Tokens of a task, and of a partial sum, of the form that sees all keys.
constexpr int64_t block_tokens = 256;

/// Calls body(chunk, head) for blocks of all tokens, in parallel.
template <class Body>
void for_each_block(int64_t batch, int64_t tokens, int64_t heads, const Body& body) {
  const ChunkPlan plan = chunk_plan(batch, tokens, block_tokens);
  parallel_tasks(static_cast<int64_t>(plan.chunks.size()) * heads,
                 [&](int64_t task) { body(plan.chunks[task / heads], task % heads); });
}

/// total = initial + a sum over all tokens of a row; [B, H, size]. part_of(chunk, head, part) writes a
/// block's part of the sum. initial may be null: zero.
template <class T, class PartOf>
void sum_over_tokens(const RecurrenceShape& s, int64_t tokens, int64_t size, const T* initial, T* total,
                     const PartOf& part_of) {
  const ChunkPlan plan = chunk_plan(s.batch, tokens, block_tokens);
  Scratch<T> between(plan.states * s.heads * size);
  const StateAfter<T> after{plan, s.heads, size, between.data(), total};
  parallel_tasks(static_cast<int64_t>(plan.chunks.size()) * s.heads, [&](int64_t task) {
    const int64_t c = task / s.heads, head = task % s.heads;
    part_of(plan.chunks[c], head, after.at(c, head));
  });
  CumulativeDecay no_decay(s, plan, static_cast<const T*>(nullptr));
  scan_states(no_decay, StateBefore<const T>{plan, s.heads, size, initial, between.data()}, after);
}

}  // namespace

template <class T>
void state_write_forward(Cpu, const RecurrenceShape& s, Heads<const T> k, Heads<const T> v,
                         const T* initial_state, const T* initial_normaliser, T* state, T* normaliser) {
  const int64_t group = s.heads / s.key_heads;
  sum_over_tokens(s, s.keys, s.key_dim * s.value_dim, initial_state, state,
                  [&](const Chunk& chunk, int64_t head, T* part) {
                    multiply_at<T>(s.key_dim, s.value_dim, chunk.length, 1, rows_of(k, chunk, head / group),
                                   rows_of(v, chunk, head), 0, {part, s.value_dim});
                  });
  if (!s.normalise) return;
  sum_over_tokens(s, s.keys, s.key_dim, initial_normaliser, normaliser,
                  [&](const Chunk& chunk, int64_t head, T* part) {
                    std::fill_n(part, s.key_dim, T(0));
                    const Rows<const T> keys = rows_of(k, chunk, head / group);
                    for (int64_t j = 0; j < chunk.length; ++j) add_scaled<T>(s.key_dim, 1, keys[j], part);
                  });
}

template <class T>
void state_write_backward(Cpu, const RecurrenceShape& s, Heads<const T> k, Heads<const T> v, const T* dstate,
                          const T* dnormaliser, Heads<T> dk, Heads<T> dv) {
  const int64_t group = s.heads / s.key_heads;
  for_each_block(s.batch, s.keys, s.key_heads, [&](const Chunk& chunk, int64_t key_head) {
    const Rows<T> dk_rows = rows_of(dk, chunk, key_head);
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      const int64_t sequence = chunk.row * s.heads + head;
      const Rows<const T> ds{dstate + sequence * s.key_dim * s.value_dim, s.value_dim};
      multiply<T>(chunk.length, s.value_dim, s.key_dim, 1, rows_of(k, chunk, key_head), ds, 0,
                  rows_of(dv, chunk, head));
      multiply_bt<T>(chunk.length, s.key_dim, s.value_dim, 1, rows_of(v, chunk, head), ds,
                     head == key_head * group ? 0 : 1, dk_rows);
      if (dnormaliser == nullptr) continue;
      for (int64_t j = 0; j < chunk.length; ++j) {
        add_scaled<T>(s.key_dim, 1, dnormaliser + sequence * s.key_dim, dk_rows[j]);
      }
    }
  });
}

template <class T>
void state_read_forward(Cpu, const RecurrenceShape& s, Heads<const T> q, const T* state, const T* normaliser,
                        Heads<T> o, T* denominators) {
  const int64_t group = s.heads / s.key_heads;
  for_each_block(s.batch, s.queries, s.heads, [&](const Chunk& chunk, int64_t head) {
    const int64_t sequence = chunk.row * s.heads + head;
    const Rows<const T> q_rows = rows_of(q, chunk, head / group);
    const Rows<T> o_rows = rows_of(o, chunk, head);
    multiply<T>(chunk.length, s.value_dim, s.key_dim, static_cast<T>(s.scale), q_rows,
                {state + sequence * s.key_dim * s.value_dim, s.value_dim}, 0, o_rows);
    if (!s.normalise) return;
    const Rows<T> denominator = scalars_of(denominators, s, chunk, head);
    for (int64_t i = 0; i < chunk.length; ++i) {
      const T mass = dot<T>(s.key_dim, q_rows[i], normaliser + sequence * s.key_dim);
      *denominator[i] = static_cast<T>(s.scale) * mass + static_cast<T>(s.eps);
      for (int64_t e = 0; e < s.value_dim; ++e) o_rows[i][e] /= *denominator[i];
    }
  });
}

template <class T>
void state_read_backward(Cpu, const RecurrenceShape& s, Heads<const T> q, const T* state, const T* normaliser,
                         Heads<const T> o, const T* denominators, Heads<const T> dout, Heads<T> dq, T* dstate,
                         T* dnormaliser) {
  const int64_t group = s.heads / s.key_heads;
  const int64_t outputs = s.batch * s.queries * s.heads;
  const T scale = static_cast<T>(s.scale);
  Scratch<T> numerators(s.normalise ? outputs * s.value_dim : 0);
  Scratch<T> dden(s.normalise ? outputs : 0);
  Heads<const T> dnum = dout;
  if (s.normalise) {
    const Heads<T> target{numerators.data(), s.queries * s.heads * s.value_dim, s.heads * s.value_dim,
                          s.value_dim};
    for_each_block(s.batch, s.queries, s.heads, [&](const Chunk& chunk, int64_t head) {
      ratio_backward<T>(chunk.length, s.value_dim, rows_of(o, chunk, head),
                        scalars_of(denominators, s, chunk, head), rows_of(dout, chunk, head),
                        rows_of(target, chunk, head), scalars_of(dden.data(), s, chunk, head));
    });
    dnum = {target.data, target.batch_stride, target.token_stride, target.head_size};
  }
  for_each_block(s.batch, s.queries, s.key_heads, [&](const Chunk& chunk, int64_t key_head) {
    const Rows<T> dq_rows = rows_of(dq, chunk, key_head);
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      const int64_t sequence = chunk.row * s.heads + head;
      multiply_bt<T>(chunk.length, s.key_dim, s.value_dim, scale, rows_of(dnum, chunk, head),
                     {state + sequence * s.key_dim * s.value_dim, s.value_dim},
                     head == key_head * group ? 0 : 1, dq_rows);
      if (!s.normalise) continue;
      const Rows<const T> weight = scalars_of(dden.data(), s, chunk, head);
      for (int64_t i = 0; i < chunk.length; ++i) {
        add_scaled(s.key_dim, scale * *weight[i], normaliser + sequence * s.key_dim, dq_rows[i]);
      }
    }
  });
  const T* zero = nullptr;
  sum_over_tokens(
      s, s.queries, s.key_dim * s.value_dim, zero, dstate, [&](const Chunk& chunk, int64_t head, T* part) {
        multiply_at<T>(s.key_dim, s.value_dim, chunk.length, scale, rows_of(q, chunk, head / group),
                       rows_of(dnum, chunk, head), 0, {part, s.value_dim});
      });
  if (!s.normalise) return;
  sum_over_tokens(s, s.queries, s.key_dim, zero, dnormaliser, [&](const Chunk& chunk, int64_t head, T* part) {
    std::fill_n(part, s.key_dim, T(0));
    const Rows<const T> q_rows = rows_of(q, chunk, head / group);
    const Rows<const T> weight = scalars_of(dden.data(), s, chunk, head);
    for (int64_t i = 0; i < chunk.length; ++i) add_scaled(s.key_dim, scale * *weight[i], q_rows[i], part);
  });
}

#define INSTANTIATE(T)                                                                                  \
  template void recurrence_forward<T>(Cpu, const RecurrenceShape&, const ChunkPlan&,                    \
                                      const RecurrenceInputs<T>&, const RecurrenceOutputs<T>&);         \
  template void recurrence_backward<T>(Cpu, const RecurrenceShape&, const ChunkPlan&,                   \
                                       const RecurrenceInputs<T>&, const RecurrenceOutputs<const T>&,   \
                                       const RecurrenceOutputGradients<T>&,                             \
                                       const RecurrenceInputGradients<T>&);                             \
  template void state_write_forward<T>(Cpu, const RecurrenceShape&, Heads<const T>, Heads<const T>,     \
                                       const T*, const T*, T*, T*);                                     \
  template void state_write_backward<T>(Cpu, const RecurrenceShape&, Heads<const T>, Heads<const T>,    \
                                        const T*, const T*, Heads<T>, Heads<T>);                        \
  template void state_read_forward<T>(Cpu, const RecurrenceShape&, Heads<const T>, const T*, const T*,  \
                                      Heads<T>, T*);                                                    \
  template void state_read_backward<T>(Cpu, const RecurrenceShape&, Heads<const T>, const T*, const T*, \
                                       Heads<const T>, const T*, Heads<const T>, Heads<T>, T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
