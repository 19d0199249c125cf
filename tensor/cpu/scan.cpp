// The selective scan on the CPU: one tile of channels of one sequence at a time, from token to token. What
// belongs to a tile is kept as [N, tile], so that vector instructions run over channels whatever N is.
#include "tensor/kernels/scan.h"

#include <algorithm>

#include "tensor/allocator.h"
#include "tensor/cpu/reduce.h"
#include "tensor/kernels/vector_math.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

/// Channels to a tile. A tile at the end of the channels is filled up with zeros, which add nothing to any
/// sum.
constexpr int64_t tile = 32;

/// Of a group.
int64_t tiles(const ScanShape& s) { return (s.channels / s.groups + tile - 1) / tile; }

/// Which sequence and channels a task works on: tile number `tile` of a group.
struct Place {
  int64_t batch, group, tile, first, count;
};

/// Calls body(place, room) for all tiles, with room for `size` numbers. Tiles share a fixed number of rooms,
/// so that these take the same memory for any batch.
template <class T, class Body>
void for_each_tile(const ScanShape& s, int64_t size, const Body& body) {
  const int64_t tasks = s.batch * s.groups * tiles(s), group_channels = s.channels / s.groups;
  const int64_t rooms = std::min<int64_t>(tasks, 64);
  Scratch<T> scratch(rooms * size);
  T* first_room = scratch.data();
  parallel_tasks(rooms, [&](int64_t room) {
    for (int64_t task = room; task < tasks; task += rooms) {
      const int64_t number = task % tiles(s), group = task / tiles(s) % s.groups;
      const int64_t first = number * tile;  // in the group
      body(Place{task / tiles(s) / s.groups, group, number, group * group_channels + first,
                 std::min(tile, group_channels - first)},
           first_room + room * size);
    }
  });
}

/// A tile's part of a row of channels; zeros for null.
template <class T>
void load_row(const T* row, int64_t count, T* out) {
  if (row == nullptr) count = 0;
  std::copy_n(row, count, out);
  std::fill_n(out + count, tile - count, T(0));
}

/// The same, in place where a whole tile is there, else in `room`.
template <class T>
const T* tile_of_row(const T* row, int64_t count, T* room) {
  if (row != nullptr && count == tile) return row;
  load_row(row, count, room);
  return room;
}

/// A tile [N, tile] of numbers [D, N]; zeros for null.
template <class T>
void load_transposed(const ScanShape& s, const Place& place, const T* values, T* out) {
  std::fill_n(out, s.states * tile, T(0));
  if (values == nullptr) return;
  for (int64_t j = 0; j < place.count; ++j) {
    for (int64_t n = 0; n < s.states; ++n) out[n * tile + j] = values[(place.first + j) * s.states + n];
  }
}

template <class T>
void store_transposed(const ScanShape& s, const Place& place, const T* in, T* values) {
  for (int64_t j = 0; j < place.count; ++j) {
    for (int64_t n = 0; n < s.states; ++n) values[(place.first + j) * s.states + n] = in[n * tile + j];
  }
}

/// The part of a batch entry's [D, N] numbers of [B, D, N]; null for null.
template <class T>
T* of_batch(const ScanShape& s, const Place& place, T* values) {
  return values == nullptr ? nullptr : values + place.batch * s.channels * s.states;
}

/// Where a token's B and C of a group are.
int64_t states_of(const ScanShape& s, const Place& place, int64_t t) {
  return ((place.batch * s.length + t) * s.groups + place.group) * s.states;
}

/// What a tile needs of one token.
template <class T>
struct Token {
  ScanDecay rule;
  bool begins;         // a document, which sees no state
  const T *u, *delta;  // [tile]
  T write[tile];       // delta u
  const T *B, *C;      // [N]
  T u_room[tile], delta_room[tile];

  Token(const ScanShape& s, const Place& place, const ScanInputs<T>& in, int64_t t) : rule(s.decay) {
    const int64_t row = place.batch * s.length + t;
    begins = in.documents != nullptr && in.documents[row] != 0;
    u = tile_of_row(in.u + row * s.channels + place.first, place.count, u_room);
    delta = tile_of_row(in.delta + row * s.channels + place.first, place.count, delta_room);
    for (int64_t j = 0; j < tile; ++j) write[j] = delta[j] * u[j];
    B = in.B + states_of(s, place, t);
    C = in.C + states_of(s, place, t);
  }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;
};

/// decay, as the rule has it, and after = decay before + write B. after may be before.
template <class T>
void advance(int64_t states, const Token<T>& token, const T* A, const T* before, T* decay, T* after) {
  const T *delta = token.delta, *write = token.write;
  for (int64_t n = 0; n < states; ++n) {
    const T b = token.B[n];
    if (token.rule == ScanDecay::exponential) {
#pragma omp simd
      for (int64_t j = 0; j < tile; ++j) decay[j] = vector_exp(delta[j] * A[j]);
    } else {
#pragma omp simd
      for (int64_t j = 0; j < tile; ++j) decay[j] = 1 - delta[j] * b * b;
    }
    if (token.begins) {  // by selection: nothing of another document is looked at
#pragma omp simd
      for (int64_t j = 0; j < tile; ++j) after[j] = write[j] * b;
    } else {
#pragma omp simd
      for (int64_t j = 0; j < tile; ++j) after[j] = write[j] * b + decay[j] * before[j];
    }
    A += tile, before += tile, decay += tile, after += tile;
  }
}

/// The checkpoint of a chunk: row n of a tile is at n * D.
template <class T>
T* checkpoint_of(const ScanShape& s, const Place& place, int64_t chunk, T* checkpoints) {
  return checkpoints + (place.batch * s.chunks() + chunk) * s.states * s.channels + place.first;
}

template <class T>
void scan_tile(const ScanShape& s, const Place& place, const ScanInputs<T>& in, T* y, T* final_state,
               T* checkpoints, T* room) {
  T* A = room;
  T* h = A + s.states * tile;
  T* decay = h + s.states * tile;
  T skip[tile];
  load_transposed(s, place, in.A, A);
  load_transposed(s, place, of_batch(s, place, in.initial_state), h);
  load_row(in.D == nullptr ? nullptr : in.D + place.first, place.count, skip);
  for (int64_t t = 0; t < s.length; ++t) {
    if (checkpoints != nullptr && t % s.chunk == 0) {
      T* checkpoint = checkpoint_of(s, place, t / s.chunk, checkpoints);
      for (int64_t n = 0; n < s.states; ++n)
        std::copy_n(h + n * tile, place.count, checkpoint + n * s.channels);
    }
    const Token<T> token(s, place, in, t);
    advance(s.states, token, A, h, decay, h);
    T sum[tile];
    for (int64_t j = 0; j < tile; ++j) sum[j] = skip[j] * token.u[j];
    for (int64_t n = 0; n < s.states; ++n) {
#pragma omp simd
      for (int64_t j = 0; j < tile; ++j) sum[j] += token.C[n] * h[n * tile + j];
    }
    std::copy_n(sum, place.count, y + (place.batch * s.length + t) * s.channels + place.first);
  }
  if (final_state != nullptr) store_transposed(s, place, h, of_batch(s, place, final_state));
}

}  // namespace

template <class T>
void selective_scan_forward(Cpu, ScanShape s, const ScanInputs<T>& in, T* y, T* final_state, T* checkpoints) {
  for_each_tile<T>(s, 3 * s.states * tile, [&](const Place& place, T* room) {
    scan_tile(s, place, in, y, final_state, checkpoints, room);
  });
}

namespace {

/// What a tile's backward pass works with, all [N, tile] or several of them.
template <class T>
struct BackwardRoom {
  T* A;
  T* dA;
  T* G;       // the gradient of the state, as far as tokens further on have determined it
  T* states;  // before the first token of the chunk and after each
  T* decays;  // of each token of the chunk

  static int64_t chunk(const ScanShape& s) { return std::min(s.chunk, s.length); }
  static int64_t size(const ScanShape& s) { return (2 * chunk(s) + 4) * s.states * tile; }

  BackwardRoom(const ScanShape& s, T* room) {
    const int64_t one = s.states * tile;
    A = room;
    dA = A + one;
    G = dA + one;
    states = G + one;
    decays = states + (chunk(s) + 1) * one;
  }
};

/// Partial sums that belong to one tile alone: dB and dC over its channels, dD over its sequence's tokens.
template <class T>
struct TileSums {
  T *dB, *dC;  // [T, G, N], from those of the group on
  T dD[tile];
};

/// One token's step back: G becomes the gradient of the state before it.
template <class T>
void step_back(const ScanShape& s, const Place& place, const ScanInputs<T>& in, const T* dy, int64_t t,
               const BackwardRoom<T>& room, const T* before, const T* after, const T* decay,
               const ScanGradients<T>& out, TileSums<T>& sums) {
  const Token<T> token(s, place, in, t);
  const int64_t offset = (place.batch * s.length + t) * s.channels + place.first;
  T gradient_room[tile], skip[tile], write_sum[tile] = {}, decay_sum[tile] = {};
  const T* gradient = tile_of_row(dy == nullptr ? nullptr : dy + offset, place.count, gradient_room);
  load_row(in.D == nullptr ? nullptr : in.D + place.first, place.count, skip);
  const T *delta = token.delta, *write = token.write, *A = room.A;
  T *G = room.G, *dA = room.dA;
  T g[tile], through[tile];  // through: g times the state before
  for (int64_t n = 0; n < s.states; ++n) {
    const int64_t sum_at = t * s.groups * s.states + n;
    const T b = token.B[n], c = token.C[n];
#pragma omp simd
    for (int64_t j = 0; j < tile; ++j) {
      g[j] = G[j] + c * gradient[j];
      write_sum[j] += g[j] * b;
    }
    sums.dB[sum_at] = row_sum<T>(tile, [&](int64_t j) { return g[j] * write[j]; });
    sums.dC[sum_at] = row_sum<T>(tile, [&](int64_t j) { return gradient[j] * after[j]; });
    if (token.begins) {
      std::fill_n(G, tile, T(0));
    } else if (token.rule == ScanDecay::exponential) {
#pragma omp simd
      for (int64_t j = 0; j < tile; ++j) {
        G[j] = g[j] * decay[j];
        through[j] = G[j] * before[j];
        decay_sum[j] += through[j] * A[j];
        dA[j] += through[j] * delta[j];
      }
    } else {
#pragma omp simd
      for (int64_t j = 0; j < tile; ++j) {
        G[j] = g[j] * decay[j];
        through[j] = g[j] * before[j];
        decay_sum[j] -= through[j] * b * b;
      }
      sums.dB[sum_at] -= 2 * b * row_sum<T>(tile, [&](int64_t j) { return through[j] * delta[j]; });
    }
    A += tile, dA += tile, G += tile, before += tile, after += tile, decay += tile;
  }
  for (int64_t j = 0; j < place.count; ++j) {
    out.du[offset + j] = write_sum[j] * token.delta[j] + skip[j] * gradient[j];
    out.ddelta[offset + j] = decay_sum[j] + write_sum[j] * token.u[j];
  }
  for (int64_t j = 0; j < tile; ++j) sums.dD[j] += gradient[j] * token.u[j];
}

/// The states and decays of a chunk's tokens, again.
template <class T>
void replay_chunk(const ScanShape& s, const Place& place, const ScanInputs<T>& in, const T* checkpoints,
                  int64_t begin, int64_t end, const BackwardRoom<T>& room) {
  const int64_t one = s.states * tile;
  const T* checkpoint = checkpoint_of(s, place, begin / s.chunk, checkpoints);
  for (int64_t n = 0; n < s.states; ++n) {
    load_row(checkpoint + n * s.channels, place.count, room.states + n * tile);
  }
  for (int64_t i = 0; i < end - begin; ++i) {
    advance(s.states, Token<T>(s, place, in, begin + i), room.A, room.states + i * one, room.decays + i * one,
            room.states + (i + 1) * one);
  }
}

}  // namespace

template <class T>
void selective_scan_backward(Cpu, ScanShape s, const ScanInputs<T>& in, const T* checkpoints, const T* dy,
                             const T* dfinal_state, const ScanGradients<T>& out) {
  const int64_t one = s.states * tile;
  const int64_t token_states = s.batch * s.length * s.groups * s.states;
  const int64_t weights = s.channels * s.states;
  // A sum for each tile, or each sequence, first: 2 B T N numbers a tile, which is N / 16 times u.
  Scratch<T> scratch(2 * tiles(s) * token_states + s.batch * (weights + s.channels));
  T* dB_parts = scratch.data();                      // [tiles, B, T, G, N]
  T* dC_parts = dB_parts + tiles(s) * token_states;  // [tiles, B, T, G, N]
  T* dA_parts = dC_parts + tiles(s) * token_states;  // [B, D, N]
  T* dD_parts = dA_parts + s.batch * weights;        // [B, D]
  for_each_tile<T>(s, BackwardRoom<T>::size(s), [&](const Place& place, T* memory) {
    const BackwardRoom<T> room(s, memory);
    const int64_t part = place.tile * token_states + states_of(s, place, 0);
    TileSums<T> sums{dB_parts + part, dC_parts + part, {}};
    load_transposed(s, place, in.A, room.A);
    load_transposed(s, place, of_batch(s, place, dfinal_state), room.G);
    std::fill_n(room.dA, one, T(0));
    for (int64_t chunk = s.chunks() - 1; chunk >= 0; --chunk) {
      const int64_t begin = chunk * s.chunk;
      const int64_t end = std::min(s.length, begin + s.chunk);
      replay_chunk(s, place, in, checkpoints, begin, end, room);
      for (int64_t i = end - begin - 1; i >= 0; --i) {
        step_back(s, place, in, dy, begin + i, room, room.states + i * one, room.states + (i + 1) * one,
                  room.decays + i * one, out, sums);
      }
    }
    store_transposed(s, place, room.dA, of_batch(s, place, dA_parts));
    std::copy_n(sums.dD, place.count, dD_parts + place.batch * s.channels + place.first);
    if (out.dinitial_state != nullptr) {
      store_transposed(s, place, room.G, of_batch(s, place, out.dinitial_state));
    }
  });
  sum_blocks(tiles(s), token_states, dB_parts, out.dB);
  sum_blocks(tiles(s), token_states, dC_parts, out.dC);
  if (s.decay == ScanDecay::exponential) sum_blocks(s.batch, weights, dA_parts, out.dA);
  sum_blocks(s.batch, s.channels, dD_parts, out.dD);
}

#define INSTANTIATE(T)                                                                               \
  template void selective_scan_forward<T>(Cpu, ScanShape, const ScanInputs<T>&, T*, T*, T*);         \
  template void selective_scan_backward<T>(Cpu, ScanShape, const ScanInputs<T>&, const T*, const T*, \
                                           const T*, const ScanGradients<T>&);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
