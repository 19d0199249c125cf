// The recurrence on a GPU: what is computed for each token once the states are known.
//
//   kernel                   a block owns, of a chunk               FLOPs, a chunk of C tokens and a head
//   read_kernel              64 tokens x 64 columns of o            C (C + 2 dk) dv
//   value_kernel             64 tokens x 64 columns of dv           C (C + 2 dk) dv
//   query_kernel             64 tokens x 64 columns of dq, for all  C (C + 2 dv) dk
//                            heads of a key head
//   key_kernel               the same of dk                         C (C + 2 dv) dk
//   correcting_key_kernel    the same                               C (2 C + 2 dv) dk
//   denominators_kernel      8 tokens, one a warp                   C (C / 2 + 2 dk)
//   ratio_kernel             8 tokens, one a warp                   2 C dv
//
// Bytes moved: a block reads its rows of pairs of tokens and of the operand on the left, and all rows of the
// chunk, or the state, on the right, from the L2 cache; it writes its tile once. Shared memory: the slabs of
// tile products. V stands for what the keys write, with the delta rule diag(beta) R.
#include "cuda/kernels/recurrence.cuh"

namespace mixgrad {

namespace {

/// O = A V + scale (Q e^b) S, divided by the denominators where there are some.
template <class T>
__global__ void read_kernel(ChunkedRecurrence<T> r, Heads<T> grams, StateRows<const T> before,
                            const T* denominators, Heads<T> o_heads) {
  BlockNumber block;
  const int column = block.next_tile(r.dv());
  const int row = block.next_tile(r.longest);
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  if (row >= at.length) return;
  Tile<T> tile(row, at.length, column, r.dv());
  if (grams.data != nullptr) {
    const auto A = at.rows(grams);
    const auto v = at.written();
    tile.template add_product<Triangle::lower>(
        0, min(at.length, row + tile_size), AlongDepth([&](int i, int j) { return j <= i ? A(i, j) : T(0); }),
        AcrossDepth([&](int j, int e) { return v(j, e); }));
  }
  if (const T* state = at.before(before)) {
    const auto q = at.q();
    const T scale = static_cast<T>(r.s.scale);
    tile.add_product(0, r.dk(),
                     AlongDepth([&](int i, int m) { return scale * q(i, m) * at.since_start(i, m); }),
                     AcrossDepth([&](int m, int e) { return state[int64_t{m} * r.dv() + e]; }));
  }
  const auto o = at.rows(o_heads);
  const auto den = at.scalars(denominators);
  tile.for_each([&](int i, int e, T sum) { o(i, e) = den.data == nullptr ? sum : sum / den(i); });
}

/// dV = A^T dnum + (K e^{b_C - b}) dS'
template <class T>
__global__ void value_kernel(ChunkedRecurrence<T> r, OutputGradients<T> d, Heads<T> grams,
                             StateRows<const T> dafter, Heads<T> dv_heads) {
  BlockNumber block;
  const int column = block.next_tile(r.dv());
  const int row = block.next_tile(r.longest);
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  if (row >= at.length) return;
  Tile<T> tile(row, at.length, column, r.dv());
  if (grams.data != nullptr) {
    const auto A = at.rows(grams);
    const auto dnum = at.numerators(d);
    tile.template add_product<Triangle::upper>(
        row, at.length, AcrossDepth([&](int j, int i) { return j <= i ? A(i, j) : T(0); }),
        AcrossDepth([&](int i, int e) { return dnum(i, e); }));
  }
  if (const T* dstate = at.after(dafter)) {
    const auto k = at.k();
    tile.add_product(0, r.dk(), AlongDepth([&](int j, int m) { return k(j, m) * at.until_end(j, m); }),
                     AcrossDepth([&](int m, int e) { return dstate[int64_t{m} * r.dv() + e]; }));
  }
  const auto dv = at.rows(dv_heads);
  tile.for_each([&](int j, int e, T sum) { dv(j, e) = sum; });
}

/// den_i = the sum of A_ij + scale (q_i e^{b_i}) . z + eps
template <class T>
__global__ void denominators_kernel(ChunkedRecurrence<T> r, Heads<T> grams, StateRows<const T> before,
                                    T* denominators) {
  BlockNumber block;
  const int i = block.next_tile(r.longest, 8) + threadIdx.x / 32;
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  if (i >= at.length) return;
  const int lane = threadIdx.x % 32;
  T pairs = 0;
  if (grams.data != nullptr) {
    for (int j = lane; j <= i; j += 32) pairs += at.rows(grams)(i, j);
  }
  T mass = 0;
  if (const T* normaliser = at.before(before)) {
    for (int m = lane; m < r.dk(); m += 32) mass += at.q()(i, m) * at.since_start(i, m) * normaliser[m];
  }
  const T sum = warp_reduce<Sum>(pairs + static_cast<T>(r.s.scale) * mass);
  if (lane == 0) at.scalars(denominators)(i) = sum + static_cast<T>(r.s.eps);
}

/// inverse = 1 / den, dden = -(d_o . o) / den
template <class T>
__global__ void ratio_kernel(RecurrenceShape s, Heads<const T> o, Heads<const T> d_o, const T* denominators,
                             T* inverse, T* dden) {
  const int64_t row = blockIdx.x * int64_t{8} + threadIdx.x / 32;  // of [B, T, H]
  if (row >= s.batch * s.queries * s.heads) return;
  const int64_t head = row % s.heads;
  const int64_t t = row / s.heads % s.queries;
  const int64_t b = row / s.heads / s.queries;
  const int lane = threadIdx.x % 32;
  T dot = 0;
  for (int64_t e = lane; e < s.value_dim; e += 32) dot += d_o.at(b, t, head)[e] * o.at(b, t, head)[e];
  dot = warp_reduce<Sum>(dot);
  if (lane > 0) return;
  inverse[row] = 1 / denominators[row];
  dden[row] = -inverse[row] * dot;
}

/// So many blocks of the kernels that have two tiles in registers are to run on a multiprocessor at once. Of
/// doubles it has registers for one.
template <class T>
constexpr int blocks_at_once = sizeof(T) == 4 ? 2 : 1;

/// The operands of a matrix of pairs, G_ij = factor x_i . y_j e^{b_i - b_j}, and its gradient.
template <class T>
struct Pairs {
  ChunkRows<T> dG;
  T factor;
  ChunkRows<const T> x, y;

  /// That of x_i . y_j e^{b_i - b_j}.
  __device__ T gradient(int i, int j) const { return factor * dG(i, j); }
};

/// term = value, or += value where there are some already.
template <class T>
__device__ void put(T& term, T value, bool add) {
  term = add ? term + value : value;
}

/// tile of dx_i += the sum over j <= i of factor dG_ij e^{b_i - b_j} y_j. Where each channel has its
/// gate, by blocks of 16 rows as in channel_gram_kernel, but without the pairs within a block.
template <bool by_channel, class T>
__device__ void add_row_gradients(const ChunkHead<T>& at, const Pairs<T>& pairs, int row, int column,
                                  Tile<T>& tile, const ChunkRows<T>& terms, bool add_terms) {
  if constexpr (!by_channel) {
    tile.template add_product<Triangle::lower>(
        0, min(at.length, row + tile_size),
        AlongDepth([&](int i, int j) { return j <= i ? pairs.gradient(i, j) * at.left(i, j, 0) : T(0); }),
        AcrossDepth([&](int j, int m) { return pairs.y(j, m); }));
  } else {
#pragma unroll 1
    for (int group = 0; group < 4; ++group) {
      const int begin = row + group * tile_group;
      if (begin >= at.length) break;
      Tile<T, 1> part(begin, at.length, column, at.r.dk());
      part.add_product(0, begin, AlongDepth([&](int i, int j) { return pairs.gradient(i, j); }),
                       AcrossDepth([&](int j, int m) { return at.left(begin, j, m) * pairs.y(j, m); }));
      part.for_each([&](int i, int m, T& sum) {
        sum *= at.left(i, begin, m);
        put(terms(i, m), pairs.x(i, m) * sum, add_terms);
      });
      tile.add_to_group(group, part);
    }
  }
}

/// tile of dy_j += the sum over i >= j of factor dG_ij e^{b_i - b_j} x_i. By blocks, it is
/// e^{b_r - b_j} times a product with e^{b_i - b_r} x_i, with r the block's last row.
template <bool by_channel, class T>
__device__ void add_column_gradients(const ChunkHead<T>& at, const Pairs<T>& pairs, int row, int column,
                                     Tile<T>& tile, const ChunkRows<T>& terms, bool add_terms) {
  if constexpr (!by_channel) {
    tile.template add_product<Triangle::upper>(
        row, at.length,
        AcrossDepth([&](int j, int i) { return j <= i ? pairs.gradient(i, j) * at.left(i, j, 0) : T(0); }),
        AcrossDepth([&](int i, int m) { return pairs.x(i, m); }));
  } else {
#pragma unroll 1
    for (int group = 0; group < 4; ++group) {
      const int begin = row + group * tile_group;
      if (begin >= at.length) break;
      const int end = min(begin + tile_group, at.length);
      Tile<T, 1> part(begin, end, column, at.r.dk());
      part.add_product(end, at.length, AcrossDepth([&](int j, int i) { return pairs.gradient(i, j); }),
                       AcrossDepth([&](int i, int m) { return at.left(i, end - 1, m) * pairs.x(i, m); }));
      part.for_each([&](int j, int m, T& sum) {
        sum *= at.left(end - 1, j, m);
        put(terms(j, m), pairs.y(j, m) * sum, add_terms);
      });
      tile.add_to_group(group, part);
    }
  }
}

/// tile_i = the sum over e of left_ie state_me: the product with a transposed state; 0 for null.
template <class T>
__device__ void add_times_state(Tile<T>& tile, int dv, const ScaledRows<T>& left, const T* state) {
  if (state == nullptr) return;
  tile.add_product(0, dv, AlongDepth([&](int i, int e) { return left(i, e); }),
                   AlongDepth([&](int e, int m) { return state[int64_t{m} * dv + e]; }));
}

/// The terms x_im tile_im, summed up for the tile unless each channel has its gate.
template <bool by_channel, class T>
__device__ void put_terms(Tile<T>& tile, const ChunkRows<const T>& x, int column, const ChunkRows<T>& terms,
                          bool add) {
  if constexpr (by_channel) {
    tile.for_each([&](int i, int m, T value) { put(terms(i, m), x(i, m) * value, add); });
  } else {
    tile.sum_rows([&](int i, int m, T value) { return x(i, m) * value; },
                  [&](int i, T total) { put(terms(i, column / tile_size), total, add); });
  }
}

/// Tokens read what those of the chunk wrote, and the state before it:
/// dQ = (dA e^{b_i - b_j}) K + scale e^b (dnum S^T + dden z).
template <bool by_channel, class T>
__global__ void __launch_bounds__(tile_threads, blocks_at_once<T>)
    query_kernel(ChunkedRecurrence<T> r, OutputGradients<T> d, Heads<T> dgrams, States<const T> before,
                 GateTerms<T> terms, Heads<T> dq) {
  BlockNumber block;
  const int column = block.next_tile(r.dk());
  const int row = block.next_tile(r.longest);
  const int key_head = block.next(r.s.key_heads);
  const Chunk& chunk = r.chunks[block.rest];
  if (row >= chunk.length) return;
  const T scale = static_cast<T>(r.s.scale);
  Tile<T> tile(row, chunk.length, column, r.dk());
  for (int head = key_head * r.group(); head < (key_head + 1) * r.group(); ++head) {
    const ChunkHead<T> at(r, block.rest, head);
    if (dgrams.data != nullptr) {
      add_row_gradients<by_channel>(at, {at.rows(dgrams), scale, at.q(), at.k()}, row, column, tile,
                                    at.rows(terms.rows), false);
    }
    Tile<T> of_state(row, at.length, column, r.dk());
    add_times_state(of_state, r.dv(), at.numerators(d), at.before(before.matrices));
    const T* normaliser = r.s.normalise ? at.before(before.normalisers) : nullptr;
    of_state.for_each([&](int i, int m, T& sum) {
      if (normaliser != nullptr) sum += at.scalars(d.dden)(i) * normaliser[m];
      sum *= scale * at.since_start(i, m);
    });
    if (r.gated()) put_terms<by_channel>(of_state, at.q(), column, at.rows(terms.later), false);
    tile.add(of_state);
  }
  tile.for_each(
      [&](int i, int m, T sum) { put(dq.at(chunk.row, chunk.start + i, key_head)[m], sum, by_channel); });
}

/// Keys write what tokens of the chunk read, and into the state after it:
/// dK = (dA e^{b_i - b_j})^T Q + e^{b_C - b} (V dS'^T + dz').
template <bool by_channel, class T>
__global__ void __launch_bounds__(tile_threads, blocks_at_once<T>)
    key_kernel(ChunkedRecurrence<T> r, Heads<T> dgrams, States<const T> dafter, GateTerms<T> terms,
               Heads<T> dk) {
  BlockNumber block;
  const int column = block.next_tile(r.dk());
  const int row = block.next_tile(r.longest);
  const int key_head = block.next(r.s.key_heads);
  const Chunk& chunk = r.chunks[block.rest];
  if (row >= chunk.length) return;
  Tile<T> tile(row, chunk.length, column, r.dk());
  for (int head = key_head * r.group(); head < (key_head + 1) * r.group(); ++head) {
    const ChunkHead<T> at(r, block.rest, head);
    if (dgrams.data != nullptr) {
      const Pairs<T> reads{at.rows(dgrams), static_cast<T>(r.s.scale), at.q(), at.k()};
      add_column_gradients<by_channel>(at, reads, row, column, tile, at.rows(terms.columns), false);
    }
    Tile<T> of_state(row, at.length, column, r.dk());
    add_times_state(of_state, r.dv(), at.written(), at.after(dafter.matrices));
    const T* dnormaliser = r.s.normalise ? at.after(dafter.normalisers) : nullptr;
    of_state.for_each([&](int j, int m, T& sum) {
      if (dnormaliser != nullptr) sum += dnormaliser[m];
      sum *= at.until_end(j, m);
    });
    if (r.gated()) put_terms<by_channel>(of_state, at.k(), column, at.rows(terms.earlier), false);
    tile.add(of_state);
  }
  tile.for_each(
      [&](int j, int m, T sum) { put(dk.at(chunk.row, chunk.start + j, key_head)[m], sum, by_channel); });
}

/// With the delta rule, keys also read what the state before the chunk and the chunk's other keys hold,
/// R = V - (K e^b) S - N diag(beta) R, dV the gradient of V itself: dK += (dN + dN^T, decayed) K - e^b (dV
/// S^T).
template <bool by_channel, class T>
__global__ void __launch_bounds__(tile_threads, blocks_at_once<T>)
    correcting_key_kernel(ChunkedRecurrence<T> r, Heads<T> dgrams, Heads<T> dv, States<const T> before,
                          GateTerms<T> terms, Heads<T> dk) {
  BlockNumber block;
  const int column = block.next_tile(r.dk());
  const int row = block.next_tile(r.longest);
  const int key_head = block.next(r.s.key_heads);
  const Chunk& chunk = r.chunks[block.rest];
  if (row >= chunk.length) return;
  Tile<T> tile(row, chunk.length, column, r.dk());
  for (int head = key_head * r.group(); head < (key_head + 1) * r.group(); ++head) {
    const ChunkHead<T> at(r, block.rest, head);
    const Pairs<T> keys{at.rows(dgrams), T(1), at.k(), at.k()};
    add_row_gradients<by_channel>(at, keys, row, column, tile, at.rows(terms.rows), true);
    add_column_gradients<by_channel>(at, keys, row, column, tile, at.rows(terms.columns), true);
    Tile<T> of_state(row, at.length, column, r.dk());
    add_times_state(of_state, r.dv(), {at.rows(dv), {}}, at.before(before.matrices));
    of_state.for_each([&](int i, int m, T& sum) { sum *= -at.since_start(i, m); });
    if (r.gated()) put_terms<by_channel>(of_state, at.k(), column, at.rows(terms.later), true);
    tile.add(of_state);
  }
  tile.for_each([&](int j, int m, T sum) { dk.at(chunk.row, chunk.start + j, key_head)[m] += sum; });
}

/// A block for each 64 tokens and 64 columns of each of the heads.
template <class T>
Launch tokens_launch(const ChunkedRecurrence<T>& r, int64_t heads, int64_t columns) {
  return {blocks_for(r.chunk_count * heads * tiles_of(r.longest) * tiles_of(columns), 1), tile_threads};
}

}  // namespace

template <class T>
void read_tokens(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<T>& gram,
                 const States<const T>& before, const Heads<T>& o, T* denominators) {
  if (r.s.normalise) {
    const int64_t blocks = r.chunk_count * r.s.heads * tiles_of(r.longest, 8);
    launch_some<denominators_kernel<T>>(device, {blocks_for(blocks, 1), 256}, r, gram, before.normalisers,
                                        denominators);
  }
  launch_some<read_kernel<T>>(device, tokens_launch(r, r.s.heads, r.s.value_dim), r, gram, before.matrices,
                              static_cast<const T*>(denominators), o);
}

template <class T>
void ratio_gradients(const Cuda& device, const RecurrenceShape& s, const Heads<const T>& o,
                     const Heads<const T>& d_o, const T* denominators, T* inverse, T* dden) {
  launch_some<ratio_kernel<T>>(device, {blocks_for(s.batch * s.queries * s.heads, 8), 256}, s, o, d_o,
                               denominators, inverse, dden);
}

template <class T>
void value_gradients(const Cuda& device, const ChunkedRecurrence<T>& r, const OutputGradients<T>& d,
                     const Heads<T>& gram, const States<const T>& dafter, const Heads<T>& dv) {
  launch_some<value_kernel<T>>(device, tokens_launch(r, r.s.heads, r.s.value_dim), r, d, gram,
                               dafter.matrices, dv);
}

template <class T>
void query_gradients(const Cuda& device, const ChunkedRecurrence<T>& r, const OutputGradients<T>& d,
                     const Grams<T>& grams, const States<const T>& before, const GateTerms<T>& terms,
                     const Heads<T>& dq) {
  const Launch size = tokens_launch(r, r.s.key_heads, r.s.key_dim);
  if (r.by_channel())
    launch_some<query_kernel<true, T>>(device, size, r, d, grams.dreads, before, terms, dq);
  else
    launch_some<query_kernel<false, T>>(device, size, r, d, grams.dreads, before, terms, dq);
}

template <class T>
void key_gradients(const Cuda& device, const ChunkedRecurrence<T>& r, const Grams<T>& grams,
                   const States<const T>& dafter, const GateTerms<T>& terms, const Heads<T>& dk) {
  const Launch size = tokens_launch(r, r.s.key_heads, r.s.key_dim);
  if (r.by_channel())
    launch_some<key_kernel<true, T>>(device, size, r, grams.dreads, dafter, terms, dk);
  else
    launch_some<key_kernel<false, T>>(device, size, r, grams.dreads, dafter, terms, dk);
}

template <class T>
void correcting_key_gradients(const Cuda& device, const ChunkedRecurrence<T>& r, const Grams<T>& grams,
                              const Heads<T>& dv, const States<const T>& before, const GateTerms<T>& terms,
                              const Heads<T>& dk) {
  const Launch size = tokens_launch(r, r.s.key_heads, r.s.key_dim);
  if (r.by_channel())
    launch_some<correcting_key_kernel<true, T>>(device, size, r, grams.dkeys, dv, before, terms, dk);
  else
    launch_some<correcting_key_kernel<false, T>>(device, size, r, grams.dkeys, dv, before, terms, dk);
}

#define INSTANTIATE(T)                                                                                    \
  template void read_tokens<T>(const Cuda&, const ChunkedRecurrence<T>&, const Heads<T>&,                 \
                               const States<const T>&, const Heads<T>&, T*);                              \
  template void ratio_gradients<T>(const Cuda&, const RecurrenceShape&, const Heads<const T>&,            \
                                   const Heads<const T>&, const T*, T*, T*);                              \
  template void value_gradients<T>(const Cuda&, const ChunkedRecurrence<T>&, const OutputGradients<T>&,   \
                                   const Heads<T>&, const States<const T>&, const Heads<T>&);             \
  template void query_gradients<T>(const Cuda&, const ChunkedRecurrence<T>&, const OutputGradients<T>&,   \
                                   const Grams<T>&, const States<const T>&, const GateTerms<T>&,          \
                                   const Heads<T>&);                                                      \
  template void key_gradients<T>(const Cuda&, const ChunkedRecurrence<T>&, const Grams<T>&,               \
                                 const States<const T>&, const GateTerms<T>&, const Heads<T>&);           \
  template void correcting_key_gradients<T>(const Cuda&, const ChunkedRecurrence<T>&, const Grams<T>&,    \
                                            const Heads<T>&, const States<const T>&, const GateTerms<T>&, \
                                            const Heads<T>&);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
