// The selective scan on a GPU. A block owns 8 channels of one group and sequence, from token to token. Each
// channel has 16 threads, each with one state in a register; where there are more states, 16 of them follow
// 16 others.
//
//   kernel          bytes moved, with N = 16                              FLOPs for each state of each token
//   scan_forward    3 sizeof(T) for each entry of u; B and C from the     some 30: one exponential
//                   L2 cache, once for each 8 channels
//   scan_backward   7 sizeof(T) for each entry of u, 4 for each entry     some 70: two exponentials
//                   of B and C and each 8 channels
//
// Shared memory of scan_backward: two numbers for each thread and each of 64 tokens, 64 KB for float and 128
// KB for double. Scratch memory: 2 B T G N for each 8 channels of a group, B D (N + 1).
#include "tensor/kernels/scan.h"

#include "cuda/device_code.h"
#include "cuda/kernels/rows.cuh"
#include "tensor/kernels/vector_math.h"

namespace mixgrad {

namespace {

constexpr int lanes = 16;  // of a channel; a warp has two of them
constexpr int block_channels = 8;
constexpr int scan_threads = lanes * block_channels;

/// Of a group.
int64_t channel_tiles(const ScanShape& s) {
  return (s.channels / s.groups + block_channels - 1) / block_channels;
}

/// The sum over the lanes of a channel, in each of them. All lanes of the warp must call it.
template <class T>
__device__ T sum_of_lanes(T value) {
  for (int step = lanes / 2; step > 0; step /= 2) value += exchange_lanes(value, step);
  return value;
}

/// What a thread works on: state n of channel d, which is of a group, of sequence b. A thread whose state or
/// channel isn't there reads nothing and computes with zeros, as its warp needs it.
template <class T>
struct Lane {
  const ScanShape& s;
  const ScanInputs<T>& in;
  int64_t tile, group, b, d, n;
  bool has_channel, has_state;
  T A, skip;

  __device__ Lane(const ScanShape& shape, const ScanInputs<T>& inputs, int64_t first_state)
      : s(shape), in(inputs) {
    const int64_t group_channels = s.channels / s.groups;
    const int64_t tiles = (group_channels + block_channels - 1) / block_channels;
    tile = blockIdx.x % tiles;
    group = blockIdx.x / tiles % s.groups;
    b = blockIdx.x / tiles / s.groups;
    const int64_t channel = tile * block_channels + threadIdx.x / lanes;  // in the group
    d = group * group_channels + channel;
    n = first_state + threadIdx.x % lanes;
    has_channel = channel < group_channels;
    has_state = has_channel && n < s.states;
    A = has_state && in.A != nullptr ? in.A[d * s.states + n] : T(0);
    skip = has_channel && in.D != nullptr ? in.D[d] : T(0);
  }

  /// Whether the thread writes what its channel's lanes have computed together.
  __device__ bool leads() const { return has_channel && threadIdx.x % lanes == 0; }
  /// In [B, T, D].
  __device__ int64_t entry(int64_t t) const { return (b * s.length + t) * s.channels + d; }
  /// Of the group's first state, in [B, T, G, N].
  __device__ int64_t states_of(int64_t t) const { return ((b * s.length + t) * s.groups + group) * s.states; }
  /// In [B, D, N].
  __device__ int64_t state() const { return (b * s.channels + d) * s.states + n; }
  /// In [B, chunks, N, D].
  __device__ int64_t checkpoint(int64_t chunk) const {
    const int64_t chunks = (s.length + s.chunk - 1) / s.chunk;
    return ((b * chunks + chunk) * s.states + n) * s.channels + d;
  }
  /// The lane's number in states [B, D, N]; 0 for null.
  __device__ T load_state(const T* states) const {
    return has_state && states != nullptr ? states[state()] : T(0);
  }
};

/// What a lane needs of one token.
template <class T>
struct Token {
  T u, delta, B, C;
  bool begins;  // a document, which sees no state
  ScanDecay rule;

  __device__ Token(const Lane<T>& lane, int64_t t) : rule(lane.s.decay) {
    const int64_t row = lane.states_of(t) + lane.n;
    begins = lane.in.documents != nullptr && lane.in.documents[lane.b * lane.s.length + t] != 0;
    u = lane.has_channel ? lane.in.u[lane.entry(t)] : T(0);
    delta = lane.has_channel ? lane.in.delta[lane.entry(t)] : T(0);
    B = lane.has_state ? lane.in.B[row] : T(0);
    C = lane.has_state ? lane.in.C[row] : T(0);
  }

  __device__ T decay(T A) const {
    return rule == ScanDecay::exponential ? vector_exp(delta * A) : 1 - delta * B * B;
  }
  /// What is left of x, which is of the token before. By selection: nothing of another document is looked at.
  __device__ T kept(T A, T x) const { return begins ? T(0) : decay(A) * x; }
  __device__ T next(T A, T h) const { return kept(A, h) + delta * u * B; }
};

template <class T>
__global__ void scan_forward(ScanShape s, ScanInputs<T> in, T* y, T* final_state, T* checkpoints) {
  for (int64_t first = 0; first == 0 || first < s.states; first += lanes) {
    const Lane<T> lane(s, in, first);
    T h = lane.load_state(in.initial_state);
    for (int64_t t = 0; t < s.length; ++t) {
      if (checkpoints != nullptr && lane.has_state && t % s.chunk == 0) {
        checkpoints[lane.checkpoint(t / s.chunk)] = h;
      }
      const Token<T> token(lane, t);
      h = token.next(lane.A, h);
      const T sum = sum_of_lanes(token.C * h);
      if (lane.leads()) {
        T& result = y[lane.entry(t)];
        result = (first == 0 ? lane.skip * token.u : result) + sum;
      }
    }
    if (final_state != nullptr && lane.has_state) final_state[lane.state()] = h;
  }
}

}  // namespace

template <class T>
void selective_scan_forward(Cuda device, ScanShape s, const ScanInputs<T>& in, T* y, T* final_state,
                            T* checkpoints) {
  const unsigned blocks = blocks_for(s.batch * s.groups * channel_tiles(s), 1);
  if (blocks == 0) return;
  launch<scan_forward<T>>(device, {blocks, scan_threads}, s, in, y, final_state, checkpoints);
}

namespace {

/// Sums of one block each: dB and dC over its channels, dA and dD over its sequence's tokens.
template <class T>
struct Partials {
  T *dB, *dC;  // [tiles, B, T, G, N]
  T* dA;       // [B, D, N]
  T* dD;       // [B, D]
};

/// sums[t, g, n] = sum over the block's channels of terms [tokens, channels, lanes], for the lanes' states;
/// sums from those of the block's group on.
template <class T>
__device__ void sum_of_channels(const Lane<T>& lane, int64_t first_state, int64_t tokens, const T* terms,
                                T* sums) {
  for (int64_t i = threadIdx.x; i < tokens * lanes; i += scan_threads) {
    const int64_t n = first_state + i % lanes;
    if (n >= lane.s.states) continue;
    T sum = 0;
    for (int c = 0; c < block_channels; ++c) sum += terms[i / lanes * scan_threads + c * lanes + i % lanes];
    sums[i / lanes * lane.s.groups * lane.s.states + n] = sum;
  }
}

template <class T>
__global__ void scan_backward(ScanShape s, ScanInputs<T> in, const T* checkpoints, const T* dy,
                              const T* dfinal_state, ScanGradients<T> out, Partials<T> partials) {
  T* const dB_terms = dynamic_shared<T>();                // [chunk, threads], at first the states before
  T* const dC_terms = dB_terms + s.chunk * scan_threads;  // each token
  for (int64_t first = 0; first == 0 || first < s.states; first += lanes) {
    const Lane<T> lane(s, in, first);
    T G = lane.load_state(dfinal_state);
    T dA = 0;
    T dD = 0;
    for (int64_t end = s.length; end > 0; end = (end - 1) / s.chunk * s.chunk) {
      const int64_t begin = (end - 1) / s.chunk * s.chunk;
      T h = lane.has_state ? checkpoints[lane.checkpoint(begin / s.chunk)] : T(0);
      for (int64_t t = begin; t < end; ++t) {
        dB_terms[(t - begin) * scan_threads + threadIdx.x] = h;
        h = Token<T>(lane, t).next(lane.A, h);
      }
      for (int64_t t = end - 1; t >= begin; --t) {
        const Token<T> token(lane, t);
        const int64_t slot = (t - begin) * scan_threads + threadIdx.x;
        const T before = dB_terms[slot];
        const T gradient = dy != nullptr && lane.has_channel ? dy[lane.entry(t)] : T(0);
        const T g = G + token.C * gradient;
        const bool exponential = s.decay == ScanDecay::exponential;
        const T earlier = token.kept(lane.A, g);
        // The gradient of the decay, or, where that is an exponential, of its argument.
        const T through = token.begins ? T(0) : (exponential ? earlier : g) * before;
        const T write_sum = sum_of_lanes(g * token.B);
        const T decay_sum = sum_of_lanes(through * (exponential ? lane.A : -token.B * token.B));
        if (lane.leads()) {
          T& du = out.du[lane.entry(t)];
          T& ddelta = out.ddelta[lane.entry(t)];
          du = (first == 0 ? lane.skip * gradient : du) + write_sum * token.delta;
          ddelta = (first == 0 ? T(0) : ddelta) + decay_sum + write_sum * token.u;
        }
        dA += through * token.delta;
        dD += gradient * token.u;
        dB_terms[slot] = g * token.delta * token.u;
        if (!exponential) dB_terms[slot] -= 2 * through * token.delta * token.B;
        dC_terms[slot] = gradient * h;
        G = earlier;
        h = before;
      }
      const int64_t sums = lane.tile * s.batch * s.length * s.groups * s.states + lane.states_of(begin);
      __syncthreads();
      sum_of_channels(lane, first, end - begin, dB_terms, partials.dB + sums);
      sum_of_channels(lane, first, end - begin, dC_terms, partials.dC + sums);
      __syncthreads();  // until the terms of the chunk are used
    }
    if (lane.has_state) partials.dA[lane.state()] = dA;
    if (lane.has_state && out.dinitial_state != nullptr) out.dinitial_state[lane.state()] = G;
    if (lane.leads() && first == 0) partials.dD[lane.b * s.channels + lane.d] = dD;
  }
}

/// total [count] = sum over parts of partial [parts, count]; null isn't wanted.
template <class T>
void sum_parts(const Cuda& device, int64_t parts, int64_t count, const T* partial, T* total) {
  if (total == nullptr || count == 0) return;
  launch<sum_partials<T>>(device, {blocks_for(count, 256), 256}, parts, count, count, partial, total);
}

}  // namespace

template <class T>
void selective_scan_backward(Cuda device, ScanShape s, const ScanInputs<T>& in, const T* checkpoints,
                             const T* dy, const T* dfinal_state, const ScanGradients<T>& out) {
  const int64_t tiles = channel_tiles(s);
  const int64_t token_states = s.batch * s.length * s.groups * s.states;
  const int64_t weights = s.channels * s.states;
  Scratch<T> scratch(2 * tiles * token_states + s.batch * (weights + s.channels), device);
  Partials<T> partials;
  partials.dB = scratch.data();
  partials.dC = partials.dB + tiles * token_states;
  partials.dA = partials.dC + tiles * token_states;
  partials.dD = partials.dA + s.batch * weights;
  const unsigned blocks = blocks_for(s.batch * s.groups * tiles, 1);
  const int64_t shared_bytes = 2 * s.chunk * scan_threads * static_cast<int64_t>(sizeof(T));
  if (blocks > 0) {
    launch<scan_backward<T>>(device, {blocks, scan_threads, shared_bytes}, s, in, checkpoints, dy,
                             dfinal_state, out, partials);
  }
  sum_parts(device, tiles, token_states, partials.dB, out.dB);
  sum_parts(device, tiles, token_states, partials.dC, out.dC);
  sum_parts(device, s.batch, weights, partials.dA, out.dA);
  sum_parts(device, s.batch, s.channels, partials.dD, out.dD);
}

#define INSTANTIATE(T)                                                                                \
  template void selective_scan_forward<T>(Cuda, ScanShape, const ScanInputs<T>&, T*, T*, T*);         \
  template void selective_scan_backward<T>(Cuda, ScanShape, const ScanInputs<T>&, const T*, const T*, \
                                           const T*, const ScanGradients<T>&);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
