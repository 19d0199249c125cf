// Short causal convolution on the CPU: one tile of channels of one sequence at a time, from token to token.
#include "tensor/kernels/conv.h"

#include <algorithm>
#include <type_traits>

#include "tensor/allocator.h"
#include "tensor/cpu/reduce.h"
#include "tensor/kernels/scalar.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

constexpr int64_t tile_channels = 64;

/// The rows of one sequence, read on from its initial state: token t is at(t), for t >= -(W - 1).
template <class T>
struct Sequence {
  T* tokens;
  T* state;
  const int32_t* documents;
  int64_t channels;
  int64_t taps;
  int64_t begin;  // the first row that can be seen

  Sequence(const ConvShape& s, int64_t batch, T* x, T* states, const int32_t* all_documents)
      : tokens(x + batch * s.length * s.channels),
        state(states == nullptr ? nullptr : states + batch * (s.taps - 1) * s.channels),
        documents(all_documents == nullptr ? nullptr : all_documents + batch * s.length),
        channels(s.channels),
        taps(s.taps),
        begin(states == nullptr ? 0 : -(s.taps - 1)) {}

  /// Comes to token t; if it begins a document, nothing before can be seen from here on.
  void enter(int64_t t) {
    if (documents != nullptr && documents[t] != 0) begin = t;
  }
  /// Null for a row that can't be seen, or that isn't there.
  T* at(int64_t t) const {
    if (t < begin) return nullptr;
    return t >= 0 ? tokens + t * channels : state + (t + taps - 1) * channels;
  }
};

/// weight [D, W] as [W, D], so that neighbouring channels are neighbours in memory.
template <class T>
void transpose_weight(const ConvShape& s, const T* weight, T* by_tap) {
  for (int64_t c = 0; c < s.channels; ++c) {
    for (int64_t i = 0; i < s.taps; ++i) by_tap[i * s.channels + c] = weight[c * s.taps + i];
  }
}

/// sums[j] = bias + sum over i of weight[i] x[t - (W - 1) + i], for the n channels from `first`.
template <class T, class Count>
void convolve(const Sequence<const T>& x, const T* weight_by_tap, const T* bias, int64_t t, int64_t first,
              Count n, T* sums) {
  for (int64_t j = 0; j < n; ++j) sums[j] = bias != nullptr ? bias[first + j] : T(0);
  for (int64_t i = 0; i < x.taps; ++i) {
    const T* row = x.at(t - (x.taps - 1) + i);
    if (row == nullptr) continue;
    const T* tap = weight_by_tap + i * x.channels + first;
    for (int64_t j = 0; j < n; ++j) sums[j] += tap[j] * row[first + j];
  }
}

/// Calls body(batch, first channel, number of channels) for each tile, in parallel. The number of a whole
/// tile is a constant to the compiler, which can keep the tile's sums in registers.
template <class Body>
void for_each_tile(const ConvShape& s, const Body& body) {
  const int64_t tiles = (s.channels + tile_channels - 1) / tile_channels;
  parallel_tasks(s.batch * tiles, [&](int64_t task) {
    const int64_t batch = task / tiles;
    const int64_t first = task % tiles * tile_channels;
    if (s.channels - first >= tile_channels)
      body(batch, first, std::integral_constant<int64_t, tile_channels>{});
    else
      body(batch, first, s.channels - first);
  });
}

}  // namespace

template <class T>
void causal_conv1d_forward(Cpu, ConvShape s, const T* x, const T* weight, const T* bias,
                           const T* initial_state, T* y, T* final_state, const int32_t* documents) {
  Scratch<T> scratch(s.taps * s.channels);
  T* by_tap = scratch.data();
  transpose_weight(s, weight, by_tap);
  for_each_tile(s, [=](int64_t batch, int64_t first, auto n) {
    Sequence<const T> in(s, batch, x, initial_state, documents);
    for (int64_t t = 0; t < s.length; ++t) {
      in.enter(t);
      T sums[tile_channels];
      convolve(in, by_tap, bias, t, first, n, sums);
      T* out = y + (batch * s.length + t) * s.channels + first;
      if (s.silu) {
        for (int64_t j = 0; j < n; ++j) out[j] = Silu::value(sums[j]);
      } else {
        std::copy_n(sums, n, out);
      }
    }
    if (final_state == nullptr) return;
    for (int64_t i = 0; i < s.taps - 1; ++i) {
      const T* row = in.at(s.length - (s.taps - 1) + i);
      T* out = final_state + (batch * (s.taps - 1) + i) * s.channels + first;
      if (row != nullptr)
        std::copy_n(row + first, n, out);
      else
        std::fill_n(out, n, T(0));
    }
  });
}

namespace {

/// Tokens that are worked on at once: their rows of a tile fit into the nearest cache.
constexpr int64_t token_block = 32;

/// e = dy f'(sums), from the sums that are in e; 0 where dy is null.
template <class T, class Count>
void through_activation(bool silu, Count n, const T* dy, T* e) {
  if (dy == nullptr) {
    std::fill_n(e, n, T(0));
  } else if (silu) {
    for (int64_t j = 0; j < n; ++j) e[j] = dy[j] * Silu::slope(e[j]);
  } else {
    std::copy_n(dy, n, e);
  }
}

/// total[j] += sum over t in [begin, end) of e_t x[t - distance], for the tokens that see that row. e_t is
/// row t of e; the n channels from `first`.
template <class T, class Count>
void add_products(Sequence<const T> x, const T* e, int64_t begin, int64_t end, int64_t distance,
                  int64_t first, Count n, T* total) {
  T sums[tile_channels] = {};
  for (int64_t t = begin; t < end; ++t) {
    x.enter(t);
    const T* row = x.at(t - distance);
    if (row == nullptr) continue;
    const T* e_row = e + t * x.channels;
    for (int64_t j = 0; j < n; ++j) sums[j] += e_row[first + j] * row[first + j];
  }
  for (int64_t j = 0; j < n; ++j) total[j] += sums[j];
}

/// Puts the gradient of row `source` in its place in dx, where e of the same token was: the sum of e_t by
/// weight, over the tokens t that see the row, and its part of dfinal [W - 1, D], the gradient of the final
/// state, unless null. For the n channels from `first`.
template <class T, class Count>
void gather_gradient(const ConvShape& s, const Sequence<T>& dx, const T* weight_by_tap, const T* dfinal,
                     int64_t source, int64_t first, Count n) {
  T* to = dx.at(source);
  if (to == nullptr) return;
  T sums[tile_channels] = {};
  const int64_t end = source + s.taps;
  int64_t t = std::max<int64_t>(source, 0);
  for (; t < std::min(end, s.length); ++t) {
    if (t > source && dx.documents != nullptr && dx.documents[t] != 0) break;
    const T* tap = weight_by_tap + (end - 1 - t) * s.channels;
    const T* e = dx.at(t);
    for (int64_t j = 0; j < n; ++j) sums[j] += tap[first + j] * e[first + j];
  }
  if (t == s.length && t < end && dfinal != nullptr) {
    const T* row = dfinal + (end - 1 - t) * s.channels;
    for (int64_t j = 0; j < n; ++j) sums[j] += row[first + j];
  }
  std::copy_n(sums, n, to + first);
}

}  // namespace

template <class T>
void causal_conv1d_backward(Cpu, ConvShape s, const T* x, const T* weight, const T* bias,
                            const T* initial_state, const T* dy, const T* dfinal_state, T* dx, T* dweight,
                            T* dbias, T* dinitial_state, const int32_t* documents) {
  const int64_t weights = s.taps * s.channels, before = s.taps - 1;
  Scratch<T> scratch(weights * (s.batch + 2) + s.batch * s.channels);
  T* by_tap = scratch.data();
  T* dweight_by_tap = by_tap + weights;
  T* dweight_parts = dweight_by_tap + weights;         // [B, W, D]
  T* dbias_parts = dweight_parts + s.batch * weights;  // [B, D]
  transpose_weight(s, weight, by_tap);
  std::fill_n(dweight_parts, s.batch * (weights + s.channels), T(0));
  for_each_tile(s, [=](int64_t batch, int64_t first, auto n) {
    Sequence<const T> in(s, batch, x, initial_state, documents);
    const Sequence<T> out(s, batch, dx, dinitial_state, documents);
    const T* dfinal = dfinal_state == nullptr ? nullptr : dfinal_state + batch * before * s.channels;
    const auto gather = [&](int64_t begin, int64_t end) {
      for (int64_t source = begin; source < end; ++source) {
        gather_gradient(s, out, by_tap, dfinal, source, first, n);
      }
    };
    T* dbias_part = dbias_parts + batch * s.channels + first;
    for (int64_t begin = 0; begin < s.length; begin += token_block) {
      const int64_t end = std::min(begin + token_block, s.length);
      const Sequence<const T> at_begin = in;
      for (int64_t t = begin; t < end; ++t) {
        in.enter(t);
        T e[tile_channels];
        if (s.silu) convolve(in, by_tap, bias, t, first, n, e);
        const T* gradient = dy == nullptr ? nullptr : dy + (batch * s.length + t) * s.channels + first;
        through_activation(s.silu, n, gradient, e);
        for (int64_t j = 0; j < n; ++j) dbias_part[j] += e[j];
        std::copy_n(e, n, out.at(t) + first);
      }
      for (int64_t i = 0; i < s.taps; ++i) {
        add_products(at_begin, out.tokens, begin, end, before - i, first, n,
                     dweight_parts + batch * weights + i * s.channels + first);
      }
      gather(begin - before, end - before);
    }
    gather(s.length - before, s.length);
  });
  sum_blocks(s.batch, s.channels, dbias_parts, dbias);
  if (dweight == nullptr) return;
  sum_blocks(s.batch, weights, dweight_parts, dweight_by_tap);
  for (int64_t c = 0; c < s.channels; ++c) {
    for (int64_t i = 0; i < s.taps; ++i) dweight[c * s.taps + i] = dweight_by_tap[i * s.channels + c];
  }
}

#define INSTANTIATE(T)                                                                                      \
  template void causal_conv1d_forward<T>(Cpu, ConvShape, const T*, const T*, const T*, const T*, T*, T*,    \
                                         const int32_t*);                                                   \
  template void causal_conv1d_backward<T>(Cpu, ConvShape, const T*, const T*, const T*, const T*, const T*, \
                                          const T*, T*, T*, T*, T*, const int32_t*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
