// Where the tokens and the states of a chunk stand in memory, and how states are carried from chunk to chunk.
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

/// Calls body(chunk, head) for the chunks of each row in the order of time, or from its end; rows and heads
/// in parallel.
template <class Body>
void scan_chunks(const ChunkPlan& plan, int64_t heads, bool backwards, const Body& body) {
  const auto rows = static_cast<int64_t>(plan.row_begin.size()) - 1;
  parallel_tasks(rows * heads, [&](int64_t task) {
    const int64_t begin = plan.row_begin[task / heads], end = plan.row_begin[task / heads + 1];
    for (int64_t i = begin; i < end; ++i) body(backwards ? begin + end - 1 - i : i, task % heads);
  });
}

/// to += e^{b_C} from, of states or normalisers [dk, size / dk]: what a chunk leaves of the state that it
/// found; and, backwards, the same of their gradients. Nothing where one of them is null.
template <class T>
void carry(const ChunkDecay& d, const T* from, T* to, int64_t size) {
  if (from == nullptr || to == nullptr) return;
  const int64_t columns = size / d.channels;
  for (int64_t m = 0; m < d.channels; ++m) {
    add_scaled(columns, static_cast<T>(d.whole(m)), from + m * columns, to + m * columns);
  }
}

/// Of outputs o_i = num_i / den_i: dnum_i = do_i / den_i and dden_i = -(do_i . o_i) / den_i.
template <class T>
void ratio_backward(int64_t length, int64_t dim, Rows<const T> o, Rows<const T> denominators,
                    Rows<const T> dout, Rows<T> dnum, Rows<T> dden) {
  for (int64_t i = 0; i < length; ++i) {
    const T inverse = 1 / *denominators[i];
    *dden[i] = -inverse * dot(dim, dout[i], o[i]);
    for (int64_t e = 0; e < dim; ++e) dnum[i][e] = inverse * dout[i][e];
  }
}

}  // namespace mixgrad
