// The causal recurrence on the CPU. A task is one chunk of one head; its matrices fit into the caches, and
// its products are tiles, each computed by one thread.
#include "tensor/kernels/recurrence.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "tensor/allocator.h"
#include "tensor/cpu/chunks.h"
#include "tensor/cpu/decay.h"
#include "tensor/cpu/tiles.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

/// y = x; [rows, columns].
template <class T>
void copy_rows(int64_t rows, int64_t columns, Rows<const T> x, Rows<T> y) {
  for (int64_t i = 0; i < rows; ++i) std::copy_n(x[i], columns, y[i]);
}

/// Memory for one row of each token and head during a pass, [H, B, T, columns].
template <class T>
class TokenRows {
 public:
  /// No memory unless wanted.
  TokenRows(bool wanted, const RecurrenceShape& s, int64_t columns)
      : batch_(s.batch),
        tokens_(s.keys),
        columns_(columns),
        rows_(wanted ? s.heads * s.batch * s.keys * columns : 0) {}

  Rows<T> operator()(const Piece& p) {
    return {rows_.data() + ((p.head * batch_ + p.chunk.row) * tokens_ + p.chunk.start) * columns_, columns_};
  }

 private:
  int64_t batch_, tokens_, columns_;
  Scratch<T> rows_;
};

/// What the forward and the backward pass of the causal form have in common.
template <class T>
class CausalPass {
 public:
  CausalPass(const RecurrenceShape& s, const ChunkPlan& plan, const RecurrenceInputs<T>& in, const T* states,
             const T* normalisers, Heads<const T> residuals, int64_t room)
      : s_(s),
        plan_(plan),
        in_(in),
        residuals_(residuals),
        scale_(static_cast<T>(s.scale)),
        decay_(s, plan, in.log_decay),
        state_before_{plan, s.heads, s.key_dim * s.value_dim, in.state, states},
        normaliser_before_{plan, s.heads, s.key_dim, in.normaliser, normalisers},
        corrections_(corrects(), s, s.key_dim),
        room_(room),
        double_room_(sums_keys_in_double() ? (plan.longest + row_block) * (s.key_dim + row_block) : 0) {}

 protected:
  /// Calls three steps for every piece: before and after in parallel, and carry, which hands a state on,
  /// chunk by chunk along each row, from its end if `backwards`. after is told which of the heads that share
  /// a key head leads; the others follow one by one.
  ///
  /// Where there are sequences enough for all threads, each is walked through once with all three steps,
  /// since what one has read or written is still in the cache for the next. That changes the order of the
  /// steps, but none of their results.
  template <class Before, class Carry, class After>
  void walk(bool backwards, const Before& before, const Carry& carry, const After& after) {
    const auto rows = static_cast<int64_t>(plan_.row_begin.size()) - 1;
    if (rows * s_.key_heads >= 2 * thread_count()) {
      scan_chunks(plan_, s_.key_heads, backwards, [&](int64_t c, int64_t key_head) {
        for_group(c, key_head, [&](const Piece& p, bool) { before(p); });
        for_group(c, key_head, [&](const Piece& p, bool) { carry(p); });
        for_group(c, key_head, after);
      });
      return;
    }
    const auto chunks = static_cast<int64_t>(plan_.chunks.size());
    parallel_tasks(chunks * s_.heads, [&](int64_t task) { before(piece(task / s_.heads, task % s_.heads)); });
    scan_chunks(plan_, s_.heads, backwards, [&](int64_t c, int64_t head) { carry(piece(c, head)); });
    parallel_tasks(chunks * s_.key_heads,
                   [&](int64_t task) { for_group(task / s_.key_heads, task % s_.key_heads, after); });
  }

  int64_t group() const { return s_.heads / s_.key_heads; }
  Rows<const T> q(const Piece& p) const { return rows_of(in_.q, p.chunk, p.head / group()); }
  Rows<const T> k(const Piece& p) const { return rows_of(in_.k, p.chunk, p.head / group()); }
  Rows<const T> v(const Piece& p) const { return rows_of(in_.v, p.chunk, p.head); }

  /// Whether this is the delta rule.
  bool corrects() const { return in_.beta != nullptr; }
  Rows<const T> beta(const Piece& p) const { return scalars(in_.beta, p); }
  Rows<const T> residuals(const Piece& p) const { return rows_of(residuals_, p.chunk, p.head); }
  /// What the keys write: V, or the residuals times beta. room: [C, dv].
  Rows<const T> written(const Piece& p, T* room) const {
    if (!corrects()) return v(p);
    const Rows<T> u{room, s_.value_dim};
    for (int64_t i = 0; i < p.length(); ++i) {
      const T rate = *beta(p)[i];
      const T* r = residuals(p)[i];
      for (int64_t e = 0; e < s_.value_dim; ++e) u[i][e] = rate * r[e];
    }
    return u;
  }

  /// Room for the functions of Gram matrices.
  T* gram_room_of(const Piece& p, Tiles<T>& tiles) const {
    return tiles.vector(gram_room(p.length(), s_.key_dim, s_.gate_channels));
  }
  /// Whether the products of keys are summed in double. A key that comes again errs by the same rounding each
  /// time; at rates near 2, where nothing is forgotten, that adds up along the sequence.
  bool sums_keys_in_double() const { return std::is_same_v<T, float> && corrects(); }
  /// N, of which only the part below the diagonal is meant.
  void key_gram(const Piece& p, Rows<T> gram, T* room) {
    if (!sums_keys_in_double()) {
      return decayed_gram<T>(s_.key_dim, 1, k(p), k(p), p.decay, gram, room);
    }
    if (p.decay.by_channel()) {
      return channel_gram<double>(s_.key_dim, T(1), k(p), k(p), p.decay, gram, room, double_room_.mine());
    }
    if constexpr (std::is_same_v<T, float>) {
      lower_gram_in_double(p.length(), s_.key_dim, k(p), gram, double_room_.mine());
    }
    if (p.decay.gated()) decay_lower(p.decay, gram, room);
  }
  /// Solves W from (I + N diag(beta)) W = K e^b, and scaled = diag(beta) W.
  void solve_corrections(const Piece& p, Rows<const T> gram, Rows<T> w, Rows<T> scaled) const {
    decay_since<T>(p.decay, -1, 0, p.length(), s_.key_dim, k(p), w);
    solve_lower<T>(p.length(), s_.key_dim, gram, beta(p), w, scaled);
  }

  /// Q e^b: queries as they read the state before the chunk. room: [C, dk].
  Rows<const T> reading_queries(const Piece& p, T* room) const {
    if (!p.decay.gated()) return q(p);
    const Rows<T> rows{room, s_.key_dim};
    decay_since<T>(p.decay, -1, 0, p.length(), s_.key_dim, q(p), rows);
    return rows;
  }
  /// K e^{b_C - b}: keys as they write the state after the chunk.
  Rows<const T> writing_keys(const Piece& p, T* room) const {
    if (!p.decay.gated()) return k(p);
    const Rows<T> rows{room, s_.key_dim};
    decay_until<T>(p.decay, p.length() - 1, p.length(), s_.key_dim, k(p), rows);
    return rows;
  }

  template <class U>
  Rows<U> scalars(U* values, const Piece& p) const {
    return scalars_of(values, s_, p.chunk, p.head);
  }

  const RecurrenceShape& s_;
  const ChunkPlan& plan_;
  const RecurrenceInputs<T>& in_;
  const Heads<const T> residuals_;  // for the delta rule only
  const T scale_;
  CumulativeDecay decay_;
  const StateBefore<const T> state_before_;
  const StateBefore<const T> normaliser_before_;  // for normalised outputs only
  TokenRows<T> corrections_;                      // for the delta rule only
  ThreadRoom<T> room_;
  ThreadRoom<double> double_room_;

 private:
  Piece piece(int64_t c, int64_t head) {
    return {c, plan_.chunks[c], head, decay_.of(plan_.chunks[c], head)};
  }

  /// Calls body(piece, leads) for the heads that share a key head, one after the other.
  template <class Body>
  void for_group(int64_t c, int64_t key_head, const Body& body) {
    for (int64_t i = 0; i < group(); ++i) body(piece(c, key_head * group() + i), i == 0);
  }
};

template <class T>
class CausalForward : CausalPass<T> {
  using Base = CausalPass<T>;
  using Base::s_, Base::plan_, Base::scale_, Base::decay_, Base::room_, Base::corrections_;
  using Base::state_before_, Base::normaliser_before_;

 public:
  CausalForward(const RecurrenceShape& s, const ChunkPlan& plan, const RecurrenceInputs<T>& in,
                const RecurrenceOutputs<T>& out)
      : Base(s, plan, in, out.states, out.normalisers, out.residuals,
             plan.longest * (plan.longest + s.key_dim + s.value_dim) +
                 gram_room(plan.longest, s.key_dim, s.gate_channels)),
        out_(out),
        state_after_{plan, s.heads, s.key_dim * s.value_dim, out.states, out.state},
        normaliser_after_{plan, s.heads, s.key_dim, out.normalisers, out.normaliser} {}

  void run() {
    this->walk(
        false, [&](const Piece& p) { this->corrects() ? prepare(p) : write(p); },
        [&](const Piece& p) {
          if (this->corrects()) {
            correct(p);
            write(p);
          }
          carry(p.decay, state_before_(p), state_after_(p), s_.key_dim * s_.value_dim);
          if (s_.normalise) carry(p.decay, normaliser_before_(p), normaliser_after_(p), s_.key_dim);
        },
        [&](const Piece& p, bool leads) { read(p, leads); });
  }

 private:
  /// The parts of the residuals that do not depend on the state: R = U - W S.
  void prepare(const Piece& p) {
    Tiles<T> tiles(room_.mine());
    const Rows<T> gram = tiles.matrix(p.length(), p.length());
    const Rows<T> scaled = tiles.matrix(p.length(), std::max(s_.key_dim, s_.value_dim));
    this->key_gram(p, gram, this->gram_room_of(p, tiles));
    this->solve_corrections(p, gram, corrections_(p), scaled);
    const Rows<T> u = rows_of(out_.residuals, p.chunk, p.head);
    copy_rows<T>(p.length(), s_.value_dim, this->v(p), u);
    solve_lower<T>(p.length(), s_.value_dim, gram, this->beta(p), u, scaled);
  }

  void correct(const Piece& p) {
    const T* state = state_before_(p);
    if (state == nullptr) return;
    multiply<T>(p.length(), s_.value_dim, s_.key_dim, -1, corrections_(p), {state, s_.value_dim}, 1,
                rows_of(out_.residuals, p.chunk, p.head));
  }

  /// What the chunk adds to the state: (K e^{b_C - b})^T V.
  void write(const Piece& p) {
    T* state = state_after_(p);
    if (state == nullptr) return;
    Tiles<T> tiles(room_.mine());
    const Rows<const T> k = this->writing_keys(p, tiles.vector(p.length() * s_.key_dim));
    const Rows<const T> v = this->written(p, tiles.vector(p.length() * s_.value_dim));
    multiply_at<T>(s_.key_dim, s_.value_dim, p.length(), 1, k, v, 0, {state, s_.value_dim});
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
    if (leads || p.decay.gated()) {
      decayed_gram<T>(s_.key_dim, scale_, this->q(p), this->k(p), p.decay, gram,
                      this->gram_room_of(p, tiles));
    }
    const Rows<T> o = rows_of(out_.o, p.chunk, p.head);
    const Rows<const T> v = this->written(p, tiles.vector(p.length() * s_.value_dim));
    lower_times<T>(p.length(), s_.value_dim, 1, gram, v, 0, o);
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
      const T* row = gram[i];  // 0 above the diagonal
      T denominator = row_sum<T>(row_block_end(i, p.length()), [=](int64_t j) { return row[j]; });
      denominator += static_cast<T>(s_.eps);
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
  using Base::s_, Base::plan_, Base::scale_, Base::decay_, Base::room_, Base::corrections_;
  using Base::state_before_, Base::normaliser_before_;

 public:
  CausalBackward(const RecurrenceShape& s, const ChunkPlan& plan, const RecurrenceInputs<T>& in,
                 const RecurrenceOutputs<const T>& out, const RecurrenceOutputGradients<T>& dout,
                 const RecurrenceInputGradients<T>& din)
      : Base(s, plan, in, out.states, out.normalisers, out.residuals,
             plan.longest * (2 * plan.longest + s.key_dim + s.value_dim + 2 * s.gate_channels) +
                 s.gate_channels + gram_room(plan.longest, s.key_dim, s.gate_channels)),
        out_(out),
        dout_(dout),
        din_(din),
        dnum_(s.normalise, s, s.value_dim),
        dden_(s.normalise, s, 1),
        dwritten_(in.beta != nullptr, s, s.value_dim),
        read_grams_(in.beta != nullptr, s, plan.longest),
        key_grams_(in.beta != nullptr, s, plan.longest),
        dstates_(plan.states * s.heads * s.key_dim * s.value_dim),
        dnormalisers_(s.normalise ? plan.states * s.heads * s.key_dim : 0),
        dstate_before_{plan, s.heads, s.key_dim * s.value_dim, din.state, dstates_.data()},
        dnormaliser_before_{plan, s.heads, s.key_dim, din.normaliser, dnormalisers_.data()},
        dstate_after_{plan, s.heads, s.key_dim * s.value_dim, dstates_.data(), dout.state},
        dnormaliser_after_{plan, s.heads, s.key_dim, dnormalisers_.data(), dout.normaliser} {}

  void run() {
    this->walk(
        true,
        [&](const Piece& p) {
          if (s_.normalise) divide_backward(p);
          read_backward_to_state(p);
          if (this->corrects()) prepare_backward(p);
        },
        [&](const Piece& p) {
          carry(p.decay, dstate_after_(p), dstate_before_(p), s_.key_dim * s_.value_dim);
          if (s_.normalise) carry(p.decay, dnormaliser_after_(p), dnormaliser_before_(p), s_.key_dim);
          if (this->corrects()) correct_backward(p);
        },
        [&](const Piece& p, bool leads) { inputs_backward(p, leads); });
    clear_unread(dstate_before_);
    clear_unread(dnormaliser_before_);
  }

 private:
  /// The gradients of the initial states of rows that begin with a document: nobody has read these states.
  void clear_unread(const StateBefore<T>& dbefore) const {
    if (dbefore.initial == nullptr) return;
    const int64_t row_size = s_.heads * dbefore.size;
    parallel_tasks(s_.batch, [&](int64_t row) {
      const bool read = plan_.chunks[plan_.row_begin[row]].first;
      if (!read) std::fill_n(dbefore.initial + row * row_size, row_size, T(0));
    });
  }

  Rows<T> dq(const Piece& p) const { return rows_of(din_.q, p.chunk, p.head / this->group()); }
  Rows<T> dk(const Piece& p) const { return rows_of(din_.k, p.chunk, p.head / this->group()); }
  Rows<T> dv(const Piece& p) const { return rows_of(din_.v, p.chunk, p.head); }

  /// Gradients of numerators and denominators of the outputs o_i = num_i / den_i.
  struct RatioGradients {
    Rows<const T> dnum;  // do / den; do itself where there is no denominator
    Rows<const T> dden;  // -(do . o) / den, one number a row; null likewise
  };
  RatioGradients output_gradients(const Piece& p) {
    if (!s_.normalise) return {rows_of(dout_.o, p.chunk, p.head), {}};
    return {dnum_(p), dden_(p)};
  }
  void divide_backward(const Piece& p) {
    ratio_backward<T>(p.length(), s_.value_dim, rows_of(out_.o, p.chunk, p.head),
                      this->scalars(out_.denominators, p), rows_of(dout_.o, p.chunk, p.head), dnum_(p),
                      dden_(p));
  }

  /// What the chunk's reads add to the gradient of the state before it: (scale Q e^b)^T dnum.
  void read_backward_to_state(const Piece& p) {
    T* dstate = dstate_before_(p);
    if (dstate == nullptr) return;
    Tiles<T> tiles(room_.mine());
    const RatioGradients d = output_gradients(p);
    const Rows<const T> q = this->reading_queries(p, tiles.vector(p.length() * s_.key_dim));
    multiply_at<T>(s_.key_dim, s_.value_dim, p.length(), scale_, q, d.dnum, 0, {dstate, s_.value_dim});
    if (!s_.normalise) return;
    T* dnormaliser = dnormaliser_before_(p);
    std::fill_n(dnormaliser, s_.key_dim, T(0));
    for (int64_t i = 0; i < p.length(); ++i) add_scaled(s_.key_dim, scale_ * *d.dden[i], q[i], dnormaliser);
  }

  /// The gradient of what the keys write, as far as the chunk reads it; and diag(beta) W.
  void prepare_backward(const Piece& p) {
    Tiles<T> tiles(room_.mine());
    const Rows<T> read_gram = read_grams_(p), key_gram = key_grams_(p);
    T* room = this->gram_room_of(p, tiles);
    decayed_gram<T>(s_.key_dim, scale_, this->q(p), this->k(p), p.decay, read_gram, room);
    lower_transposed_times<T>(p.length(), s_.value_dim, 1, read_gram, rows_of(dout_.o, p.chunk, p.head), 0,
                              dwritten_(p));
    this->key_gram(p, key_gram, room);
    this->solve_corrections(p, key_gram, tiles.matrix(p.length(), s_.key_dim), corrections_(p));
  }

  /// With what later chunks read, the gradient is complete; the residuals hand it on to the state before.
  void correct_backward(const Piece& p) {
    if (const T* dstate = dstate_after_(p)) {
      const Rows<const T> k = this->writing_keys(p, room_.mine());
      multiply<T>(p.length(), s_.value_dim, s_.key_dim, 1, k, {dstate, s_.value_dim}, 1, dwritten_(p));
    }
    if (T* dstate = dstate_before_(p)) {
      multiply_at<T>(s_.key_dim, s_.value_dim, p.length(), -1, corrections_(p), dwritten_(p), 1,
                     {dstate, s_.value_dim});
    }
  }

  /// Where a piece collects the gradients of its log decays.
  struct GateGradients {
    Rows<T> dlog_decay;  // [C, channels]
    Rows<T> terms;       // [C, channels], of the sum that is being made
    T* sum;              // [channels]
    T* room;             // for the functions of Gram matrices
  };

  /// The gradients of the chunk's q, k, v, beta and log decays, once those of the states on both sides are
  /// known. The first of a group's heads overwrites dq and dk, the others add to them.
  void inputs_backward(const Piece& p, bool leads) {
    Tiles<T> tiles(room_.mine());
    const int64_t channels = s_.gate_channels;
    const RatioGradients d = output_gradients(p);
    const GateGradients gates{tiles.matrix(p.length(), channels), tiles.matrix(p.length(), channels),
                              tiles.vector(channels), this->gram_room_of(p, tiles)};
    std::fill_n(gates.dlog_decay.data, p.length() * channels, T(0));
    const Rows<const T> written = this->written(p, tiles.vector(p.length() * s_.value_dim));
    const Rows<T> gram = this->corrects() ? read_grams_(p) : tiles.matrix(p.length(), p.length());
    const Rows<T> dgram = tiles.matrix(p.length(), p.length());
    reads_backward(p, leads, d, written, gram, dgram, gates);
    if (this->corrects()) corrections_backward(p, written, dgram, gates);
    const Rows<T> tile = tiles.matrix(p.length(), s_.key_dim);
    if (const T* state = state_before_(p)) {
      state_before_backward(p, scale_, this->q(p), d, state, tile, dq(p), gates);
      if (this->corrects()) state_before_backward(p, -1, this->k(p), {dv(p), {}}, state, tile, dk(p), gates);
    }
    if (const T* dstate = dstate_after_(p)) state_after_backward(p, dstate, written, tile, gates);
    if (p.decay.gated()) write_dlog_decay(p, gates.dlog_decay);
  }

  /// Where a log decay was limited it has no gradient.
  void write_dlog_decay(const Piece& p, Rows<const T> dlog_decay) const {
    for (int64_t t = 0; t < p.length(); ++t) {
      const int64_t row = (p.chunk.row * s_.queries + p.chunk.start + t) * s_.heads + p.head;
      const T* given = this->in_.log_decay + row * s_.gate_channels;
      T* wanted = din_.log_decay + row * s_.gate_channels;
      for (int64_t m = 0; m < s_.gate_channels; ++m) {
        wanted[m] = given[m] < least_log_decay ? T(0) : dlog_decay[t][m];
      }
    }
  }

  /// Tokens read what those of the chunk wrote: num = A U and den = the row sums of A, A the decayed Gram
  /// matrix.
  void reads_backward(const Piece& p, bool leads, const RatioGradients& d, Rows<const T> written,
                      Rows<T> gram, Rows<T> dgram, const GateGradients& gates) {
    if (!this->corrects()) {  // else it is there, and its product part of the gradient of what is written
      decayed_gram<T>(s_.key_dim, scale_, this->q(p), this->k(p), p.decay, gram, gates.room);
      lower_transposed_times<T>(p.length(), s_.value_dim, 1, gram, d.dnum, 0, dv(p));
    }
    for (int64_t i = 0; i < p.length() && s_.normalise; ++i) std::fill_n(dgram[i], p.length(), *d.dden[i]);
    lower_product<T>(p.length(), s_.value_dim, 1, d.dnum, written, s_.normalise ? 1 : 0, dgram);
    decayed_gram_backward<T>(s_.key_dim, scale_, this->q(p), this->k(p), p.decay, gram, dgram, leads ? 0 : 1,
                             dq(p), dk(p), gates.dlog_decay, gates.room);
  }

  /// R = V - (K e^b) S - N U with U = diag(beta) R. The gradient of U, complete but for what it does within
  /// the residuals, becomes that of V.
  void corrections_backward(const Piece& p, Rows<const T> written, Rows<T> dgram,
                            const GateGradients& gates) {
    const Rows<T> gram = key_grams_(p);
    const Rows<T> du = dwritten_(p);
    solve_lower_transposed<T>(p.length(), s_.value_dim, gram, this->beta(p), du, dv(p));
    const Rows<T> dbeta = this->scalars(din_.beta, p);
    for (int64_t i = 0; i < p.length(); ++i) {
      *dbeta[i] = dot<T>(s_.value_dim, du[i], this->residuals(p)[i]);
    }
    lower_product<T>(p.length(), s_.value_dim, -1, dv(p), written, 0, dgram);
    for (int64_t i = 0; i < p.length(); ++i) dgram[i][i] = 0;
    decayed_gram_backward<T>(s_.key_dim, 1, this->k(p), this->k(p), p.decay, gram, dgram, 1, dk(p), dk(p),
                             gates.dlog_decay, gates.room);
  }

  /// Token i reads the state before the chunk, num_i = factor e^{b_i} x_i S.
  void state_before_backward(const Piece& p, T factor, Rows<const T> x, const RatioGradients& d,
                             const T* state, Rows<T> tile, Rows<T> dx, const GateGradients& gates) {
    const bool gated = p.decay.gated();
    const Rows<T> sum = gated ? tile : dx;
    multiply_bt<T>(p.length(), s_.key_dim, s_.value_dim, factor, d.dnum, {state, s_.value_dim}, gated ? 0 : 1,
                   sum);
    const T* normaliser = s_.normalise ? normaliser_before_(p) : nullptr;
    for (int64_t i = 0; i < p.length() && normaliser != nullptr; ++i) {
      add_scaled(s_.key_dim, factor * *d.dden[i], normaliser, sum[i]);
    }
    if (!gated) return;
    decay_since<T>(p.decay, -1, 0, p.length(), s_.key_dim, tile, tile);
    gate_terms<T>(p.length(), s_.key_dim, s_.gate_channels, x, tile, gates.terms);
    add_later_terms<T>(p.length(), s_.gate_channels, gates.terms, gates.dlog_decay);
    for (int64_t i = 0; i < p.length(); ++i) add_scaled<T>(s_.key_dim, 1, tile[i], dx[i]);
  }

  /// Token j writes into the state after the chunk, S' = e^{b_C} S + sum over j of e^{b_C - b_j} k_j^T u_j.
  void state_after_backward(const Piece& p, const T* dstate, Rows<const T> written, Rows<T> tile,
                            const GateGradients& gates) {
    const bool gated = p.decay.gated();
    const Rows<T> sum = gated ? tile : dk(p);
    multiply_bt<T>(p.length(), s_.key_dim, s_.value_dim, 1, written, {dstate, s_.value_dim}, gated ? 0 : 1,
                   sum);
    const T* dnormaliser = s_.normalise ? dnormaliser_after_(p) : nullptr;
    for (int64_t j = 0; j < p.length() && dnormaliser != nullptr; ++j) {
      add_scaled<T>(s_.key_dim, 1, dnormaliser, sum[j]);
    }
    if (gated) {
      decay_until<T>(p.decay, p.length() - 1, p.length(), s_.key_dim, tile, tile);
      gate_terms<T>(p.length(), s_.key_dim, s_.gate_channels, this->k(p), tile, gates.terms);
      whole_chunk_terms(p, dstate, dnormaliser, gates.sum);
      add_earlier_terms<T>(p.length(), s_.gate_channels, gates.terms, gates.sum, gates.dlog_decay);
      for (int64_t j = 0; j < p.length(); ++j) add_scaled<T>(s_.key_dim, 1, tile[j], dk(p)[j]);
    }
    if (this->corrects()) return;  // the gradient of what is written is complete
    const Rows<const T> k = this->writing_keys(p, tile.data);
    multiply<T>(p.length(), s_.value_dim, s_.key_dim, 1, k, {dstate, s_.value_dim}, 1, dv(p));
  }

  /// e^{b_C} (<S, dS'> + <z, dz'>), for each channel where each has its gate: the derivative by b_C, of which
  /// every log decay of the chunk is part.
  void whole_chunk_terms(const Piece& p, const T* dstate, const T* dnormaliser, T* terms) const {
    const T* state = state_before_(p);
    const T* normaliser = s_.normalise ? normaliser_before_(p) : nullptr;
    const int64_t rows = s_.key_dim / s_.gate_channels, size = rows * s_.value_dim;
    for (int64_t m = 0; m < s_.gate_channels; ++m) {
      T product = 0;
      if (state != nullptr) product += dot(size, state + m * size, dstate + m * size);
      if (normaliser != nullptr && dnormaliser != nullptr) {
        product += dot(rows, normaliser + m * rows, dnormaliser + m * rows);
      }
      terms[m] = static_cast<T>(p.decay.whole(m)) * product;
    }
  }

  const RecurrenceOutputs<const T>& out_;
  const RecurrenceOutputGradients<T>& dout_;
  const RecurrenceInputGradients<T>& din_;
  TokenRows<T> dnum_, dden_;             // for normalised outputs only
  TokenRows<T> dwritten_;                // for the delta rule only, like the next
  TokenRows<T> read_grams_, key_grams_;  // of queries and keys, and of keys alone
  Scratch<T> dstates_;                   // of the states between chunks
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

#define INSTANTIATE(T)                                                                                \
  template void recurrence_forward<T>(Cpu, const RecurrenceShape&, const ChunkPlan&,                  \
                                      const RecurrenceInputs<T>&, const RecurrenceOutputs<T>&);       \
  template void recurrence_backward<T>(Cpu, const RecurrenceShape&, const ChunkPlan&,                 \
                                       const RecurrenceInputs<T>&, const RecurrenceOutputs<const T>&, \
                                       const RecurrenceOutputGradients<T>&,                           \
                                       const RecurrenceInputGradients<T>&);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
