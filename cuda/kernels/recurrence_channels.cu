// The recurrence on a GPU with a gate for each channel: gradients of pairs of tokens, and of log decays.
//
// e^{b_i - b_j} is then inside the product of row i and row j. A chunk is cut into blocks of 16 tokens. Pairs
// of tokens of different blocks are products of matrices with the decays on both sides, see
// recurrence_grams.cu and recurrence_tokens.cu; pairs within a block are taken one by one, here.
//
//   kernel                owns                                  FLOPs, a chunk of C tokens and a head
//   block_pairs_kernel    a thread 16 tokens of a channel       some 14 and an exponential for each channel
//                         of a key head                         of 17 C / 2 pairs
//   span_kernel           a block 16 tokens x 64 channels       at most C^3 dk / 48
//   log_decays_kernel     a thread 16 tokens of a channel       C (C / 16 + 6) dk
//
// Bytes moved: rows of tokens once for each kernel, but span_kernel reads those before and behind each 16
// tokens, and log_decays_kernel the terms of all tokens, from the L2 cache. Shared memory: 32 numbers a
// thread for block_pairs_kernel, 16 KB for float and 32 KB for double; the slabs of tile products for
// span_kernel.
#include "cuda/kernels/recurrence.cuh"

namespace mixgrad {

namespace {

constexpr int channel_threads = 128;

/// Numbers of a thread, one for each token of its block, in shared memory: registers have no indices.
template <class T>
struct BlockColumn {
  T* data;

  __device__ T& operator[](int i) const { return data[i * channel_threads]; }
};

/// Pairs i, j of tokens of a block, i >= j, with w = scale dA_ij e^{b_i - b_j} and, for the delta rule,
/// n = dN_ij e^{b_i - b_j}, n = 0 for i = j:
///   dq_i = sum of w k_j     dk_j = sum of w q_i + n k_i     dk_i += sum of n k_j
/// over the heads of a key head, too; and dlog_decay_t = the sum over j < t <= i of (w q_i + n k_i) k_j. What
/// these gradients have besides is added later.
template <class T>
__global__ void block_pairs_kernel(ChunkedRecurrence<T> r, Grams<T> grams, Heads<T> dq_heads,
                                   Heads<T> dk_heads, T* dlog_decays) {
  __shared__ SharedArray<T, tile_group * channel_threads> dk_numbers;
  __shared__ SharedArray<T, tile_group * channel_threads> term_numbers;
  const BlockColumn<T> dk{dk_numbers.data() + threadIdx.x};
  const BlockColumn<T> terms{term_numbers.data() + threadIdx.x};  // of a token j, and those i seen so far
  BlockNumber thread{int64_t{blockIdx.x} * blockDim.x + threadIdx.x};
  const int m = thread.next(r.dk());
  const int begin = thread.next_tile(r.longest, tile_group);
  const int key_head = thread.next(r.s.key_heads);
  if (thread.rest >= r.chunk_count) return;
  const Chunk& chunk = r.chunks[thread.rest];
  const int rows = min(tile_group, static_cast<int>(chunk.length) - begin);
  const T scale = static_cast<T>(r.s.scale);
  const bool corrects = grams.dkeys.data != nullptr;
  const auto dq = [&](int i) -> T& { return dq_heads.at(chunk.row, chunk.start + begin + i, key_head)[m]; };
  for (int i = 0; i < rows; ++i) dq(i) = dk[i] = 0;
  for (int head = key_head * r.group(); head < (key_head + 1) * r.group(); ++head) {
    const ChunkHead<T> at(r, thread.rest, head);
    const auto dA = at.rows(grams.dreads);
    const auto dN = at.rows(grams.dkeys);
    const auto q = at.q();
    const auto k = at.k();
    for (int i = 0; i < rows; ++i) terms[i] = 0;
    for (int i = rows - 1; i >= 0; --i) {
      const T q_i = q(begin + i, m);
      const T k_i = k(begin + i, m);
      T dq_i = 0;
      T dk_i = 0;
      T dlog_decay = 0;
      for (int j = 0; j <= i; ++j) {
        const T left = at.left(begin + i, begin + j, m);
        const T k_j = k(begin + j, m);
        const T w = scale * dA(begin + i, begin + j) * left;
        const T n = corrects ? dN(begin + i, begin + j) * left : T(0);
        const T dk_j = w * q_i + n * k_i;
        dq_i += w * k_j;
        dk_i += n * k_j;
        dk[j] += dk_j;
        if (j == i) continue;  // no log decay lies between
        terms[j] += dk_j * k_j;
        dlog_decay += terms[j];
      }
      dq(i) += dq_i;
      dk[i] += dk_i;
      at.log_decays(dlog_decays)(begin + i, m) = dlog_decay;
    }
  }
  for (int i = 0; i < rows; ++i) dk_heads.at(chunk.row, chunk.start + begin + i, key_head)[m] = dk[i];
}

/// The terms of exponents b_im - b_jm with j before a block of 16 tokens and i behind it. With r a token of
/// the block, their sum over j is x_im e^{b_i - b_r} times a product with e^{b_r - b_j} y_j. The tile is the
/// product's transpose, so that its rows are channels.
template <class T>
__global__ void span_kernel(ChunkedRecurrence<T> r, Grams<T> grams, T* spans) {
  BlockNumber block;
  const int row = block.next_tile(r.dk());
  const int64_t place = block.rest;
  const int begin = block.next_tile(r.longest, tile_group);
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  const int end = begin + tile_group;
  T* span = spans + place * r.dk();
  for (int m = row + threadIdx.x; m < min(row + tile_size, r.dk()); m += tile_threads) span[m] = 0;
  if (begin == 0) return;
  const auto add_pairs = [&](const ChunkRows<T>& dG, T factor, const ChunkRows<const T>& x) {
    const auto y = at.k();
    for (int column = end; column < at.length; column += tile_size) {
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

/// Adds to the log decays' gradients all terms but those of pairs within a block.
template <class T>
__global__ void log_decays_kernel(ChunkedRecurrence<T> r, GateTerms<T> terms, T* dlog_decays) {
  BlockNumber thread{int64_t{blockIdx.x} * blockDim.x + threadIdx.x};
  const int m = thread.next(r.dk());
  const int64_t block = thread.rest;
  const int begin = thread.next_tile(r.longest, tile_group);
  const int head = thread.next(r.s.heads);
  if (thread.rest >= r.chunk_count) return;
  const ChunkHead<T> at(r, thread.rest, head);
  const int end = min(begin + tile_group, at.length);
  const auto later = at.rows(terms.later);
  const auto earlier = at.rows(terms.earlier);
  const auto dlog_decay = at.log_decays(dlog_decays);
  T behind = 0;  // terms of tokens from t on
  for (int i = end; i < at.length; ++i) behind += later(i, m);
  for (int t = end - 1; t >= begin; --t) {
    behind += later(t, m) + at.rows(terms.rows)(t, m);
    dlog_decay(t, m) += behind;
  }
  T before =
      terms.whole[(thread.rest * r.s.heads + head) * r.s.key_dim + m] + terms.spans[block * r.dk() + m];
  for (int j = 0; j < min(begin, at.length); ++j) before += earlier(j, m);
  for (int t = begin; t < end; ++t) {
    const bool limited = at.log_decays(r.in.log_decay)(t, m) < least_log_decay;
    dlog_decay(t, m) = limited ? T(0) : dlog_decay(t, m) + before;
    before += earlier(t, m) + at.rows(terms.columns)(t, m);
  }
}

template <class T>
int64_t blocks_of_heads(const ChunkedRecurrence<T>& r, int64_t heads) {
  return r.chunk_count * heads * tiles_of(r.longest, tile_group);
}

}  // namespace

template <class T>
void block_pairs_backward(const Cuda& device, const ChunkedRecurrence<T>& r, const Grams<T>& grams,
                          const Heads<T>& dq, const Heads<T>& dk, T* dlog_decay) {
  const int64_t threads = blocks_of_heads(r, r.s.key_heads) * r.s.key_dim;
  launch_some<block_pairs_kernel<T>>(device, {blocks_for(threads, channel_threads), channel_threads}, r,
                                     grams, dq, dk, dlog_decay);
}

template <class T>
void add_channel_terms(const Cuda& device, const ChunkedRecurrence<T>& r, const Grams<T>& grams,
                       GateTerms<T> terms, T* dlog_decay) {
  const int64_t blocks = blocks_of_heads(r, r.s.heads);
  Scratch<T> spans(blocks * r.s.key_dim, device);
  terms.spans = spans.data();
  launch_some<span_kernel<T>>(device, {blocks_for(blocks * tiles_of(r.s.key_dim), 1), tile_threads}, r, grams,
                              terms.spans);
  launch_some<log_decays_kernel<T>>(
      device, {blocks_for(blocks * r.s.key_dim, channel_threads), channel_threads}, r, terms, dlog_decay);
}

#define INSTANTIATE(T)                                                                             \
  template void block_pairs_backward<T>(const Cuda&, const ChunkedRecurrence<T>&, const Grams<T>&, \
                                        const Heads<T>&, const Heads<T>&, T*);                     \
  template void add_channel_terms<T>(const Cuda&, const ChunkedRecurrence<T>&, const Grams<T>&,    \
                                     GateTerms<T>, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
