// Where the tokens and the states of a chunk stand in memory, and the scan that carries states from chunk to
// chunk.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/cpu/decay.h"
#include "tensor/cpu/tiles.h"
#include "tensor/kernels/recurrence.h"
#include "tensor/parallel.h"

namespace mixgrad {

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

/// One head's part of a chunk.
struct Piece {
  int64_t index;  // of the chunk in the plan
  const Chunk& chunk;
  int64_t head;
  ChunkDecay decay;

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
    if (chunk.first) return initial == nullptr ? nullptr : initial + (chunk.row * heads + head) * size;
    return chunk.state < 0 ? nullptr : between + (chunk.state * heads + head) * size;
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
    if (chunk.last) return final == nullptr ? nullptr : final + (chunk.row * heads + head) * size;
    const int64_t next = plan.chunks[c + 1].state;
    return next < 0 ? nullptr : between + (next * heads + head) * size;
  }
};

/// Calls body(row, head), in parallel.
template <class Body>
void for_each_sequence(const ChunkPlan& plan, int64_t heads, const Body& body) {
  const auto rows = static_cast<int64_t>(plan.row_begin.size()) - 1;
  parallel_tasks(rows * heads, [&](int64_t task) { body(task / heads, task % heads); });
}

/// Calls body(chunk, head) for the chunks of each row in the order of time; rows and heads in parallel.
template <class Body>
void scan_chunks(const ChunkPlan& plan, int64_t heads, const Body& body) {
  for_each_sequence(plan, heads, [&](int64_t row, int64_t head) {
    for (int64_t c = plan.row_begin[row]; c < plan.row_begin[row + 1]; ++c) body(c, head);
  });
}

/// The same from the end of each row.
template <class Body>
void scan_chunks_backwards(const ChunkPlan& plan, int64_t heads, const Body& body) {
  for_each_sequence(plan, heads, [&](int64_t row, int64_t head) {
    for (int64_t c = plan.row_begin[row + 1] - 1; c >= plan.row_begin[row]; --c) body(c, head);
  });
}

/// to += e^{b_C} from, of states or normalisers [dk, size / dk]: what a chunk leaves of the state that it
/// found.
template <class T>
void add_decayed_state(const ChunkDecay& d, int64_t size, const T* from, T* to) {
  const int64_t columns = size / d.channels;
  for (int64_t m = 0; m < d.channels; ++m) {
    add_scaled(columns, static_cast<T>(d.whole(m)), from + m * columns, to + m * columns);
  }
}

/// state after += e^{b_C} state before.
template <class T>
void carry(CumulativeDecay& decay, const StateBefore<const T>& before, const StateAfter<T>& after, int64_t c,
           int64_t head) {
  const T* from = before.at(c, head);
  T* to = after.at(c, head);
  if (from == nullptr || to == nullptr) return;
  add_decayed_state(decay.of(after.plan.chunks[c], head), after.size, from, to);
}

/// Its backward: dstate before += e^{b_C} dstate after.
template <class T>
void carry_backward(CumulativeDecay& decay, const StateBefore<T>& dbefore, const StateAfter<const T>& dafter,
                    int64_t c, int64_t head) {
  const T* from = dafter.at(c, head);
  T* to = dbefore.at(c, head);
  if (from == nullptr || to == nullptr) return;
  add_decayed_state(decay.of(dbefore.plan.chunks[c], head), dbefore.size, from, to);
}

/// Turns what each chunk adds into the states, along each row.
template <class T>
void scan_states(CumulativeDecay& decay, const StateBefore<const T>& before, const StateAfter<T>& after) {
  scan_chunks(after.plan, after.heads,
              [&](int64_t c, int64_t head) { carry(decay, before, after, c, head); });
}

/// Turns what each chunk adds to the gradients of states into them, from the end of each row.
template <class T>
void scan_states_backward(CumulativeDecay& decay, const StateBefore<T>& dbefore,
                          const StateAfter<const T>& dafter) {
  scan_chunks_backwards(dbefore.plan, dbefore.heads,
                        [&](int64_t c, int64_t head) { carry_backward(decay, dbefore, dafter, c, head); });
}

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

}  // namespace mixgrad
