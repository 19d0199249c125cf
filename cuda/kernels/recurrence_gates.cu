// The recurrence on a GPU: gates, and the gradients of log decays.
//
// log_decay_t is part of every exponent b_i with t <= i, b_C - b_j with j < t, and b_i - b_j with j < t <= i.
// So its gradient is a sum of the terms that contain them, over ranges of tokens. No sum is the difference of
// larger ones: that would cancel in float, completely where the gates are strong.
//
//   kernel                   a thread, warp or block owns               operations, a chunk of C tokens
//   cumulate_kernel          a channel: a thread                        C channels
//   whole_kernel             a key channel: a warp                      2 dk dv
//   log_decay_kernel         a chunk: a block                           3 C^2
//   span_kernel              16 tokens x 64 channels: a block           C^3 dk / 48
//   channel_log_decay_kernel 16 tokens of a channel: a thread           16 C dk / 2 with an exponential each
//
// Bytes moved: what is summed up is read once or, where it is one number a token, up to C times from the
// caches. Shared memory: none, the slabs of tile products, or, for channel_log_decay_kernel, 16 numbers a
// thread, 8 KB for float and 16 KB for double.
#include "cuda/kernels/map.cuh"
#include "cuda/kernels/recurrence.cuh"

namespace mixgrad {

namespace {

/// b_i = g_1 + ... + g_i in each chunk, summed in double: differences of large sums become exponents.
template <class T>
__global__ void cumulate_kernel(ChunkedRecurrence<T> r, Heads<double> b_heads) {
  const int64_t channels = r.s.gate_channels;
  BlockNumber thread{int64_t{blockIdx.x} * blockDim.x + threadIdx.x};
  const int m = thread.next(channels);
  const int head = thread.next(r.s.heads);
  if (thread.rest >= r.chunk_count) return;
  const ChunkHead<T> at(r, thread.rest, head);
  const auto g = at.log_decays(r.in.log_decay);
  const auto b = at.rows(b_heads);
  double sum = 0;
  for (int i = 0; i < at.length; ++i) {
    sum += max(static_cast<double>(g(i, m)), least_log_decay);
    b(i, m) = sum;
  }
}

/// whole_m = e^{b_C} (<S_m, dS'_m> + z_m dz'_m)
template <class T>
__global__ void whole_kernel(ChunkedRecurrence<T> r, States<const T> before, States<const T> dafter,
                             T* whole) {
  BlockNumber warp{blockIdx.x * int64_t{8} + threadIdx.x / 32};
  const int64_t place = warp.rest;
  const int m = warp.next(r.dk());
  const int head = warp.next(r.s.heads);
  if (warp.rest >= r.chunk_count) return;
  const ChunkHead<T> at(r, warp.rest, head);
  const int lane = threadIdx.x % 32;
  const T* state = at.before(before.matrices);
  const T* dstate = at.after(dafter.matrices);
  T dot = 0;
  if (state != nullptr && dstate != nullptr) {
    const int64_t row = int64_t{m} * r.dv();
    for (int e = lane; e < r.dv(); e += 32) dot += state[row + e] * dstate[row + e];
  }
  dot = warp_reduce<Sum>(dot);
  if (lane > 0) return;
  const T* normaliser = r.s.normalise ? at.before(before.normalisers) : nullptr;
  const T* dnormaliser = r.s.normalise ? at.after(dafter.normalisers) : nullptr;
  if (normaliser != nullptr && dnormaliser != nullptr) dot += normaliser[m] * dnormaliser[m];
  whole[place] = at.whole(m) * dot;
}

/// The gradients of a chunk's log decays, one a token. Overwrites dreads.
template <class T>
__global__ void log_decay_kernel(ChunkedRecurrence<T> r, Grams<T> grams, GateTerms<T> terms, T* dlog_decays) {
  BlockNumber block;
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  const auto A = at.rows(grams.reads);
  const auto dA = at.rows(grams.dreads);
  const bool has_keys = grams.keys.data != nullptr;
  // dA_tj = the sum of A_ij dA_ij, and of N_ij dN_ij, over i >= t.
  for (int j = threadIdx.x; j < at.length; j += blockDim.x) {
    T sum = 0;
    for (int i = at.length - 1; i > j; --i) {
      sum += A(i, j) * dA(i, j);
      if (has_keys) sum += at.rows(grams.keys)(i, j) * at.rows(grams.dkeys)(i, j);
      dA(i, j) = sum;
    }
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const auto tiles = static_cast<int>(tiles_of(r.dk()));
  const auto later = at.rows(terms.later);
  const auto earlier = at.rows(terms.earlier);
  const T* whole = terms.whole + blockIdx.x * r.s.key_dim;
  for (int t = threadIdx.x / 32; t < at.length; t += blockDim.x / 32) {
    T sum = 0;
    for (int j = lane; j < t; j += 32) {
      sum += dA(t, j);
      for (int tile = 0; tile < tiles; ++tile) sum += earlier(j, tile);
    }
    for (int i = t + lane; i < at.length; i += 32) {
      for (int tile = 0; tile < tiles; ++tile) sum += later(i, tile);
    }
    for (int m = lane; m < r.dk(); m += 32) sum += whole[m];
    sum = warp_reduce<mixgrad::Sum>(sum);
    // Where a log decay was limited it has no gradient.
    const bool limited = at.log_decays(r.in.log_decay)(t) < least_log_decay;
    if (lane == 0) at.log_decays(dlog_decays)(t) = limited ? T(0) : sum;
  }
}

/// The terms of exponents b_im - b_jm with j before a block of 16 tokens and i behind it. With r a token of
/// the block, their sum over j is x_im e^{b_i - b_r} times a product with e^{b_r - b_j} y_j. The tile is the
/// product's transpose, so that its rows are channels.
template <class T>
__global__ void span_kernel(ChunkedRecurrence<T> r, Grams<T> grams, T* spans) {
  BlockNumber block;
  const int row = block.next(tiles_of(r.dk())) * 64;
  const int64_t place = block.rest;
  const int begin = block.next(tiles_of(r.longest, tile_group)) * tile_group;
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  const int end = begin + tile_group;
  if (begin == 0 || end >= at.length) return;
  T* span = spans + place * r.dk();
  const auto add_pairs = [&](const ChunkRows<T>& dG, T factor, const ChunkRows<const T>& x) {
    const auto y = at.k();
    for (int column = end; column < at.length; column += 64) {
      Tile<T> tile(row, r.dk(), column, at.length);
      tile.add_product(0, begin, AcrossDepth([&](int m, int j) { return at.left(begin, j, m) * y(j, m); }),
                       AlongDepth([&](int j, int i) { return factor * dG(i, j); }));
      tile.sum_rows([&](int m, int i, T sum) { return x(i, m) * at.left(i, begin, m) * sum; },
                    [&](int m, T sum) { span[m] += sum; });
    }
  };
  add_pairs(at.rows(grams.dreads), static_cast<T>(r.s.scale), at.q());
  if (grams.dkeys.data != nullptr) add_pairs(at.rows(grams.dkeys), T(1), at.k());
}

constexpr int channel_threads = 128;

/// The gradients of a block's 16 log decays of a channel.
template <class T>
__global__ void channel_log_decay_kernel(ChunkedRecurrence<T> r, Grams<T> grams, GateTerms<T> terms,
                                         T* dlog_decays) {
  __shared__ SharedArray<T, tile_group * channel_threads> columns;
  T* const column = columns.data() + threadIdx.x;  // column[j channel_threads] belongs to token begin + j
  BlockNumber thread{int64_t{blockIdx.x} * blockDim.x + threadIdx.x};
  const int m = thread.next(r.dk());
  const int64_t block = thread.rest;
  const int begin = thread.next(tiles_of(r.longest, tile_group)) * tile_group;
  const int head = thread.next(r.s.heads);
  if (thread.rest >= r.chunk_count) return;
  const ChunkHead<T> at(r, thread.rest, head);
  if (begin >= at.length) return;
  const int end = min(begin + tile_group, at.length);
  const auto q = at.q();
  const auto k = at.k();
  const auto dA = at.rows(grams.dreads);
  const bool has_keys = grams.dkeys.data != nullptr;
  const auto dlog_decay = at.log_decays(dlog_decays);

  // Terms of tokens from t on.
  T later = 0;
  for (int i = end; i < at.length; ++i) later += at.rows(terms.later)(i, m);
  T rows = 0;
  for (int j = 0; j < tile_group; ++j) column[j * channel_threads] = 0;
  for (int t = end - 1; t >= begin; --t) {
    later += at.rows(terms.later)(t, m);
    rows += at.rows(terms.rows)(t, m);
    T pairs = 0;  // of tokens j < t and, in their columns, i >= t
    for (int j = begin; j < t; ++j) {
      T weight = static_cast<T>(r.s.scale) * dA(t, j) * q(t, m);
      if (has_keys) weight += at.rows(grams.dkeys)(t, j) * k(t, m);
      T& sum = column[(j - begin) * channel_threads];
      sum += weight * at.left(t, j, m) * k(j, m);
      pairs += sum;
    }
    dlog_decay(t, m) = later + rows + pairs;
  }
  // Terms of tokens before t.
  T earlier = terms.whole[(thread.rest * r.s.heads + head) * r.s.key_dim + m];
  for (int j = 0; j < begin; ++j) earlier += at.rows(terms.earlier)(j, m);
  T sums = terms.spans[block * r.dk() + m];
  for (int t = begin; t < end; ++t) {
    const bool limited = at.log_decays(r.in.log_decay)(t, m) < least_log_decay;
    dlog_decay(t, m) = limited ? T(0) : dlog_decay(t, m) + earlier + sums;
    earlier += at.rows(terms.earlier)(t, m);
    sums += at.rows(terms.columns)(t, m);
  }
}

}  // namespace

template <class T>
void cumulate_decays(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<double>& b) {
  const int64_t channels = r.chunk_count * r.s.heads * r.s.gate_channels;
  launch_some<cumulate_kernel<T>>(device, {blocks_for(channels, 128), 128}, r, b);
}

template <class T>
void log_decay_gradients(const Cuda& device, const ChunkedRecurrence<T>& r, const Grams<T>& grams,
                         const States<const T>& before, const States<const T>& dafter, GateTerms<T> terms,
                         T* dlog_decay) {
  const int64_t pieces = r.chunk_count * r.s.heads;
  const int64_t blocks = r.by_channel() ? pieces * tiles_of(r.longest, tile_group) : 0;
  Scratch<T> whole(pieces * r.s.key_dim, device);
  Scratch<T> spans(blocks * r.s.key_dim, device);
  terms.whole = whole.data();
  terms.spans = spans.data();
  launch_some<whole_kernel<T>>(device, {blocks_for(pieces * r.s.key_dim, 8), 256}, r, before, dafter,
                               terms.whole);
  if (r.by_channel()) {
    map(device, blocks * r.s.key_dim, [=] __device__(int64_t i) { terms.spans[i] = 0; });
    launch_some<span_kernel<T>>(device, {blocks_for(blocks * tiles_of(r.s.key_dim), 1), tile_threads}, r,
                                grams, terms.spans);
    launch_some<channel_log_decay_kernel<T>>(
        device, {blocks_for(blocks * r.s.key_dim, channel_threads), channel_threads}, r, grams, terms,
        dlog_decay);
  } else {
    launch_some<log_decay_kernel<T>>(device, {blocks_for(pieces, 1), 256}, r, grams, terms, dlog_decay);
  }
}

#define INSTANTIATE(T)                                                                              \
  template void cumulate_decays<T>(const Cuda&, const ChunkedRecurrence<T>&, const Heads<double>&); \
  template void log_decay_gradients<T>(const Cuda&, const ChunkedRecurrence<T>&, const Grams<T>&,   \
                                       const States<const T>&, const States<const T>&, GateTerms<T>, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
