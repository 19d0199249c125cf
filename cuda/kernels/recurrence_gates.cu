// The recurrence on a GPU: gates, and the gradients of log decays.
//
// log_decay_t is part of every exponent b_i with t <= i, b_C - b_j with j < t, and b_i - b_j with j < t <= i.
// So its gradient is a sum of the terms that contain them, over ranges of tokens. No sum is the difference of
// larger ones: that would cancel in float, completely where the gates are strong.
//
//   kernel              owns                            FLOPs, a chunk of C tokens and a head
//   cumulate_kernel     a thread a channel              C channels
//   whole_kernel        a warp a key channel            2 dk dv
//   log_decay_kernel    a block a head of a chunk       C^2 (2 + dk / 64), with the delta rule C^2 more
//
// Bytes moved: what is summed up is read once, but sums over tokens in log_decay_kernel read one number a
// token and 64 channels up to C times, from the L1 cache. Shared memory: none.
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
  Scratch<T> whole(pieces * r.s.key_dim, device);
  terms.whole = whole.data();
  launch_some<whole_kernel<T>>(device, {blocks_for(pieces * r.s.key_dim, 8), 256}, r, before, dafter,
                               terms.whole);
  if (r.by_channel())
    add_channel_terms(device, r, grams, terms, dlog_decay);
  else
    launch_some<log_decay_kernel<T>>(device, {blocks_for(pieces, 1), 256}, r, grams, terms, dlog_decay);
}

#define INSTANTIATE(T)                                                                              \
  template void cumulate_decays<T>(const Cuda&, const ChunkedRecurrence<T>&, const Heads<double>&); \
  template void log_decay_gradients<T>(const Cuda&, const ChunkedRecurrence<T>&, const Grams<T>&,   \
                                       const States<const T>&, const States<const T>&, GateTerms<T>, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
