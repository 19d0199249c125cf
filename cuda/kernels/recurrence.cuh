// What the kernels of the recurrence have in common: where a chunk's rows, decays and states are, and the
// phases of the computation, which recurrence.cu puts together.
//
// Blocks are numbered along x alone, which may have 2^31 of them: by chunk, then head, then tile.
#pragma once

#include <cstdint>

#include "cuda/device_code.h"
#include "cuda/kernels/tile.cuh"
#include "tensor/allocator.h"
#include "tensor/kernels/recurrence.h"
#include "tensor/kernels/vector_math.h"

namespace mixgrad {

/// A state for each chunk and head, [size] numbers, as memory has them: at an end of each row, and between
/// chunks. Null: they are zero, or nobody wants them.
template <class T>
struct StateRows {
  T* ends;     // [B, H, size]; the initial ones, or the final ones
  T* between;  // [plan.states, H, size]
  int64_t size;

  operator StateRows<const T>() const { return {ends, between, size}; }
};

/// S [dk, dv] and, only where normalised, z [dk].
template <class T>
struct States {
  StateRows<T> matrices;
  StateRows<T> normalisers;

  States() = default;
  States(const RecurrenceShape& s, T* matrix_ends, T* matrices_between, T* normaliser_ends,
         T* normalisers_between)
      : matrices{matrix_ends, matrices_between, s.key_dim * s.value_dim},
        normalisers{normaliser_ends, normalisers_between, s.key_dim} {}
};

/// The operands of one call, for kernels.
template <class T>
struct ChunkedRecurrence {
  RecurrenceShape s;
  RecurrenceInputs<T> in;
  Heads<const T> residuals;  // of the delta rule
  Heads<const double> b;     // cumulative log decays of chunks, [B, T, H, gate_channels]; null: no gate
  const Chunk* chunks;       // [chunk_count]
  const int64_t* row_begin;  // [B + 1]
  int64_t chunk_count;
  int64_t longest;

  __device__ int dk() const { return static_cast<int>(s.key_dim); }
  __device__ int dv() const { return static_cast<int>(s.value_dim); }
  __host__ __device__ bool gated() const { return in.log_decay != nullptr; }
  __host__ __device__ bool by_channel() const { return gated() && s.gate_channels > 1; }
  __host__ __device__ int64_t group() const { return s.heads / s.key_heads; }
};

/// The rows of one head in the tokens of a chunk: element (token, column).
template <class T>
struct ChunkRows {
  T* data;
  int64_t stride;

  __device__ T& operator()(int i, int column = 0) const { return data[i * stride + column]; }
  __device__ operator ChunkRows<const T>() const { return {data, stride}; }
};

/// b of one head in a chunk, [C, channels]: the sums of the log decays up to and including each token.
struct ChunkGate {
  const double* b;  // null: no gate
  int64_t stride;   // between tokens
  bool by_channel;

  /// 0 for token -1, the chunk's start.
  __device__ double at(int i, int m) const { return i < 0 ? 0 : b[i * stride + (by_channel ? m : 0)]; }
};

/// Rows, each times a number of its own.
template <class T>
struct ScaledRows {
  ChunkRows<const T> rows;
  ChunkRows<const T> factors;  // null: 1

  __device__ T operator()(int i, int column) const {
    return factors.data == nullptr ? rows(i, column) : factors(i) * rows(i, column);
  }
};

/// Gradients of outputs o_i = num_i / den_i.
template <class T>
struct OutputGradients {
  Heads<const T> d_o;  // [B, T, H, dv]
  const T* inverse;    // 1 / den_i, [B, T, H]; null: nothing is divided
  const T* dden;       // -(do_i . o_i) / den_i, [B, T, H]; null likewise
};

/// What tokens of chunks contribute to the gradients of log decays. `size`: one number for each 64 key
/// channels where a token has one log decay; else one for each channel.
template <class T>
struct GateTerms {
  Heads<T> later;    // [B, T, H, size]; of an exponent b_i, to which all log decays up to token i's belong
  Heads<T> earlier;  // [B, T, H, size]; of b_C - b_j, to which all behind token j's belong
  T* whole;          // [chunks, H, dk]; of b_C
  // Of exponents b_i - b_j inside a chunk, where each channel has its gate; with i and j in different ones of
  // the blocks of 16 tokens that a chunk is cut into.
  Heads<T> rows;     // [B, T, H, dk]; of token i and all j
  Heads<T> columns;  // [B, T, H, dk]; of token j and all i
  T* spans;          // [chunks, H, blocks, dk]; of all j before a block and all i behind it
};

/// One head's part of a chunk.
template <class T>
struct ChunkHead {
  const ChunkedRecurrence<T>& r;
  int64_t index;  // of the chunk in the plan
  const Chunk& chunk;
  int head;
  int length;
  ChunkGate gate;

  __device__ ChunkHead(const ChunkedRecurrence<T>& recurrence, int64_t chunk_index, int head_index)
      : r(recurrence), index(chunk_index), chunk(r.chunks[index]), head(head_index) {
    length = static_cast<int>(chunk.length);
    gate = {nullptr, r.b.token_stride, r.by_channel()};
    if (r.b.data != nullptr) gate.b = rows(r.b).data;
  }

  /// e^{b_i - b_j}, j <= i: what is left at token i of what was written at token j, or, for j = -1, before
  /// the chunk. The difference is formed in double.
  __device__ T left(int i, int j, int m) const {
    return gate.b == nullptr ? T(1) : vector_exp(static_cast<T>(gate.at(i, m) - gate.at(j, m)));
  }
  /// e^{b_i}, e^{b_C - b_j} and e^{b_C}
  __device__ T since_start(int i, int m) const { return left(i, -1, m); }
  __device__ T until_end(int j, int m) const { return left(length - 1, j, m); }
  __device__ T whole(int m) const { return length == 0 ? T(1) : left(length - 1, -1, m); }

  /// The rows of this head, and of its key head.
  template <class U>
  __device__ ChunkRows<U> rows(const Heads<U>& x) const {
    return {x.at(chunk.row, chunk.start, head), x.token_stride};
  }
  template <class U>
  __device__ ChunkRows<U> key_rows(const Heads<U>& x) const {
    return {x.at(chunk.row, chunk.start, head / r.group()), x.token_stride};
  }
  /// Of values [B, T, H]; null stays null.
  template <class U>
  __device__ ChunkRows<U> scalars(U* values) const {
    if (values == nullptr) return {nullptr, 0};
    return {values + (chunk.row * r.s.queries + chunk.start) * r.s.heads + head, r.s.heads};
  }
  /// Of log decays [B, T, H, gate_channels], or their gradients.
  template <class U>
  __device__ ChunkRows<U> log_decays(U* values) const {
    const int64_t token = chunk.row * r.s.keys + chunk.start;
    return {values + (token * r.s.heads + head) * r.s.gate_channels, r.s.heads * r.s.gate_channels};
  }
  __device__ ChunkRows<const T> q() const { return key_rows(r.in.q); }
  __device__ ChunkRows<const T> k() const { return key_rows(r.in.k); }
  /// What the keys write: V, or the residuals times beta.
  __device__ ScaledRows<T> written() const {
    return {rows(r.in.beta == nullptr ? r.in.v : r.residuals), scalars(r.in.beta)};
  }
  /// dnum
  __device__ ScaledRows<T> numerators(const OutputGradients<T>& d) const {
    return {rows(d.d_o), scalars(d.inverse)};
  }

  /// The state before the chunk; null: it is zero, or nobody wants it.
  template <class U>
  __device__ U* before(const StateRows<U>& states) const {
    return chunk.first ? of_row(states) : between(states, chunk.state);
  }
  /// The state after it; null likewise.
  template <class U>
  __device__ U* after(const StateRows<U>& states) const {
    return chunk.last ? of_row(states) : between(states, r.chunks[index + 1].state);
  }

 private:
  template <class U>
  __device__ U* of_row(const StateRows<U>& states) const {
    if (states.ends == nullptr) return nullptr;
    return states.ends + (chunk.row * r.s.heads + head) * states.size;
  }
  template <class U>
  __device__ U* between(const StateRows<U>& states, int64_t state) const {
    if (states.between == nullptr || state < 0) return nullptr;
    return states.between + (state * r.s.heads + head) * states.size;
  }
};

__host__ __device__ inline int64_t tiles_of(int64_t count, int64_t tile = tile_size) {
  return (count + tile - 1) / tile;
}

/// Takes the number of a block, or of a thread, apart: what changes fastest first.
struct BlockNumber {
  int64_t rest = blockIdx.x;

  __device__ int next(int64_t count) {
    const auto part = static_cast<int>(rest % count);
    rest /= count;
    return part;
  }
  /// Where the tile of so many rows, or columns, begins.
  __device__ int next_tile(int64_t count, int tile = tile_size) { return next(tiles_of(count, tile)) * tile; }
};

/// Launches unless there are no blocks.
template <auto kernel, class... Args>
void launch_some(const Cuda& device, const Launch& size, Args... arguments) {
  if (size.blocks.x > 0) launch<kernel>(device, size, arguments...);
}

/// Scratch memory with a row for each token and head, [B, T, H, columns]; those of a head lie side by side.
template <class T>
class TokenScratch {
 public:
  /// No memory unless wanted.
  TokenScratch(const Cuda& device, bool wanted, const RecurrenceShape& s, int64_t columns)
      : memory_(wanted ? s.batch * s.heads * s.keys * columns : 0, device),
        rows_{memory_.data(), s.heads * s.keys * columns, columns, s.keys * columns} {}

  const Heads<T>& rows() const { return rows_; }

 private:
  Scratch<T> memory_;
  Heads<T> rows_;
};

/// Matrices of pairs of tokens of a chunk, [B, T, H, longest]: row i belongs to token i, and what is above
/// the diagonal is never written nor read. No data: all zero.
template <class T>
struct Grams {
  Heads<T> reads, dreads;  // A and its gradient
  Heads<T> keys, dkeys;    // N and its gradient, of the delta rule
};

// The phases, each a kernel or a few. `before` and `after` are the states on both sides of each chunk.

/// b [B, T, H, gate_channels] of each chunk, from the log decays.
template <class T>
void cumulate_decays(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<double>& b);
/// dlog_decay [B, T, H, gate_channels], from terms without `whole` and `spans`, which this computes.
/// Overwrites the grams' gradients. Where each channel has its gate it adds to what block_pairs_backward
/// wrote.
template <class T>
void log_decay_gradients(const Cuda& device, const ChunkedRecurrence<T>& r, const Grams<T>& grams,
                         const States<const T>& before, const States<const T>& dafter, GateTerms<T> terms,
                         T* dlog_decay);
/// The part of it with a gate for each channel, from terms without spans.
template <class T>
void add_channel_terms(const Cuda& device, const ChunkedRecurrence<T>& r, const Grams<T>& grams,
                       GateTerms<T> terms, T* dlog_decay);
/// With a gate for each channel: what pairs of tokens within the blocks of 16 have in dq, dk and dlog_decay.
template <class T>
void block_pairs_backward(const Cuda& device, const ChunkedRecurrence<T>& r, const Grams<T>& grams,
                          const Heads<T>& dq, const Heads<T>& dk, T* dlog_decay);

/// G_ij = scale x_i . k_j e^{b_i - b_j} for j <= i, x being `left`, summed in Sum.
template <class Sum, class T>
void decayed_gram(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<const T>& left, T scale,
                  const Heads<T>& gram);
/// dG_ij = factor dnum_i . v_j + dden_i for j <= i, V being what the keys write; with `strict` 0 for j = i.
template <class T>
void gram_gradient(const Cuda& device, const ChunkedRecurrence<T>& r, const OutputGradients<T>& d, T factor,
                   bool strict, const Heads<T>& dgram);

/// What each chunk adds to the state after it.
template <class T>
void write_states(const Cuda& device, const ChunkedRecurrence<T>& r, const States<T>& after);
/// What each chunk's reads add to the gradient of the state before it.
template <class T>
void reads_backward(const Cuda& device, const ChunkedRecurrence<T>& r, const OutputGradients<T>& d,
                    const States<T>& dbefore);
/// Turns what each chunk adds into the states, along each row.
template <class T>
void pass_states(const Cuda& device, const ChunkedRecurrence<T>& r, const States<const T>& before,
                 const States<T>& after);
/// The same with gradients, from the end of each row.
template <class T>
void pass_states_backward(const Cuda& device, const ChunkedRecurrence<T>& r, const States<const T>& dafter,
                          const States<T>& dbefore);

/// For the delta rule: W [B, T, H, dk] and, unless they have no data, the part U of the residuals that does
/// not depend on the state, from N.
template <class T>
void solve_corrections(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<T>& key_gram,
                       const Heads<T>& corrections, const Heads<T>& residuals);
/// From them the states and the residuals, in the place of U.
template <class T>
void correct_states(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<T>& corrections,
                    const States<const T>& before, const States<T>& after, const Heads<T>& residuals);
/// Adds what later chunks read to dwritten [B, T, H, dv], the gradient of diag(beta) R, which are what the
/// keys write; and turns what reads add to the gradients of states into them, as pass_states_backward does.
template <class T>
void correct_states_backward(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<T>& corrections,
                             const States<const T>& dafter, const States<T>& dbefore,
                             const Heads<T>& dwritten);
/// Adds what the chunk's own residuals read; dv, and dbeta [B, T, H].
template <class T>
void solve_backward(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<T>& key_gram,
                    const Heads<T>& dwritten, const Heads<T>& dv, T* dbeta);

/// o = A V + scale (Q e^b) S, divided, where normalised, by the denominators [B, T, H], which it writes.
template <class T>
void read_tokens(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<T>& gram,
                 const States<const T>& before, const Heads<T>& o, T* denominators);
/// inverse and dden [B, T, H] of OutputGradients.
template <class T>
void ratio_gradients(const Cuda& device, const RecurrenceShape& s, const Heads<const T>& o,
                     const Heads<const T>& d_o, const T* denominators, T* inverse, T* dden);
/// dv = A^T dnum + (K e^{b_C - b}) dS'
template <class T>
void value_gradients(const Cuda& device, const ChunkedRecurrence<T>& r, const OutputGradients<T>& d,
                     const Heads<T>& gram, const States<const T>& dafter, const Heads<T>& dv);
/// dq, summed over the heads of each key head, and terms.later and rows. With a gate for each channel it adds
/// to what block_pairs_backward wrote, and so does the next.
template <class T>
void query_gradients(const Cuda& device, const ChunkedRecurrence<T>& r, const OutputGradients<T>& d,
                     const Grams<T>& grams, const States<const T>& before, const GateTerms<T>& terms,
                     const Heads<T>& dq);
/// dk likewise, and terms.earlier and columns.
template <class T>
void key_gradients(const Cuda& device, const ChunkedRecurrence<T>& r, const Grams<T>& grams,
                   const States<const T>& dafter, const GateTerms<T>& terms, const Heads<T>& dk);
/// Adds what the delta rule's keys read to dk and to terms.later, rows and columns.
template <class T>
void correcting_key_gradients(const Cuda& device, const ChunkedRecurrence<T>& r, const Grams<T>& grams,
                              const Heads<T>& dv, const States<const T>& before, const GateTerms<T>& terms,
                              const Heads<T>& dk);

}  // namespace mixgrad
