// The recurrence on a GPU: products of the tokens of a chunk with each other, and their gradients.
//
//   kernel                 a block owns                       FLOPs, a chunk of C tokens
//   gram_kernel            64 x 64 of one matrix              2 C^2 dk
//   channel_gram_kernel    16 rows of one matrix; a warp has  C^2 dk, and an exponential for each channel of
//                          pairs among these rows             17 C / 2 pairs
//   gram_gradient_kernel   64 x 64 of one matrix              2 C^2 dv
//
// Bytes moved: the rows of a chunk once for each 64, or 16, of the others, from the L2 cache; C^2 / 2 numbers
// written. Shared memory: the slabs of tile products. V stands for what the keys write, with the delta rule
// diag(beta) R.
#include "cuda/kernels/recurrence.cuh"

namespace mixgrad {

namespace {

/// G_ij = scale x_i . k_j e^{b_i - b_j} for j <= i, with one log decay a token.
template <class Sum, class T>
__global__ void gram_kernel(ChunkedRecurrence<T> r, Heads<const T> left, T scale, Heads<T> grams) {
  BlockNumber block;
  const int column = block.next_tile(r.longest);
  const int row = block.next_tile(r.longest);
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  if (row >= at.length || column > row) return;
  const auto x = at.key_rows(left);
  const auto k = at.k();
  const auto gram = at.rows(grams);
  Tile<T, 4, 4, Sum> tile(row, at.length, column, at.length);
  tile.add_product(0, r.dk(), AlongDepth([&](int i, int m) { return x(i, m); }),
                   AlongDepth([&](int m, int j) { return k(j, m); }));
  tile.for_each([&](int i, int j, Sum sum) {
    if (j <= i) gram(i, j) = static_cast<T>(scale * sum) * at.left(i, j, 0);
  });
}

/// G_ij = scale times the sum over m of x_im k_jm e^{b_im - b_jm}, with a log decay for each channel. For j
/// before the block of rows it is a product of e^{b_i - b_r} x_i and e^{b_r - b_j} k_j, with r the block's
/// first row; both exponents are at most 0. Pairs within the block are taken one by one.
template <class Sum, class T>
__global__ void channel_gram_kernel(ChunkedRecurrence<T> r, Heads<const T> left, T scale, Heads<T> grams) {
  BlockNumber block;
  const int begin = block.next_tile(r.longest, tile_group);
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  if (begin >= at.length) return;
  const int end = min(begin + tile_group, at.length);
  const auto x = at.key_rows(left);
  const auto k = at.k();
  const auto gram = at.rows(grams);
  for (int column = 0; column < begin; column += tile_size) {
    Tile<T, 1, 4, Sum> tile(begin, end, column, begin);
    tile.add_product(0, r.dk(), AlongDepth([&](int i, int m) { return x(i, m) * at.left(i, begin, m); }),
                     AlongDepth([&](int m, int j) { return k(j, m) * at.left(begin, j, m); }));
    tile.for_each([&](int i, int j, Sum sum) { gram(i, j) = static_cast<T>(scale * sum); });
  }
  const int lane = threadIdx.x % 32;
  for (int pair = threadIdx.x / 32; pair < tile_group * tile_group; pair += tile_threads / 32) {
    const int i = begin + pair / tile_group;
    const int j = begin + pair % tile_group;
    if (i >= end || j > i) continue;
    Sum sum = 0;
    for (int m = lane; m < r.dk(); m += 32) sum += Sum{x(i, m)} * Sum{k(j, m)} * Sum{at.left(i, j, m)};
    sum = warp_reduce<mixgrad::Sum>(sum);
    if (lane == 0) gram(i, j) = static_cast<T>(scale * sum);
  }
}

/// dG_ij = factor dnum_i . v_j + dden_i for j <= i; with `strict` 0 for j = i.
template <class T>
__global__ void gram_gradient_kernel(ChunkedRecurrence<T> r, OutputGradients<T> d, T factor, bool strict,
                                     Heads<T> dgrams) {
  BlockNumber block;
  const int column = block.next_tile(r.longest);
  const int row = block.next_tile(r.longest);
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  if (row >= at.length || column > row) return;
  const auto dnum = at.numerators(d);
  const auto dden = at.scalars(d.dden);
  const auto v = at.written();
  const auto dgram = at.rows(dgrams);
  Tile<T> tile(row, at.length, column, at.length);
  tile.add_product(0, r.dv(), AlongDepth([&](int i, int e) { return dnum(i, e); }),
                   AlongDepth([&](int e, int j) { return v(j, e); }));
  tile.for_each([&](int i, int j, T sum) {
    if (j > i) return;
    const T of_denominator = dden.data == nullptr ? T(0) : dden(i);
    dgram(i, j) = strict && j == i ? T(0) : factor * sum + of_denominator;
  });
}

template <class T>
Launch squares_launch(const ChunkedRecurrence<T>& r) {
  const int64_t tiles = tiles_of(r.longest);
  return {blocks_for(r.chunk_count * r.s.heads * tiles * tiles, 1), tile_threads};
}

}  // namespace

template <class Sum, class T>
void decayed_gram(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<const T>& left, T scale,
                  const Heads<T>& gram) {
  if (r.by_channel()) {
    const int64_t blocks = r.chunk_count * r.s.heads * tiles_of(r.longest, tile_group);
    launch_some<channel_gram_kernel<Sum, T>>(device, {blocks_for(blocks, 1), tile_threads}, r, left, scale,
                                             gram);
  } else {
    launch_some<gram_kernel<Sum, T>>(device, squares_launch(r), r, left, scale, gram);
  }
}

template <class T>
void gram_gradient(const Cuda& device, const ChunkedRecurrence<T>& r, const OutputGradients<T>& d, T factor,
                   bool strict, const Heads<T>& dgram) {
  launch_some<gram_gradient_kernel<T>>(device, squares_launch(r), r, d, factor, strict, dgram);
}

#define INSTANTIATE_GRAM(Sum, T)                                                                         \
  template void decayed_gram<Sum, T>(const Cuda&, const ChunkedRecurrence<T>&, const Heads<const T>&, T, \
                                     const Heads<T>&);
INSTANTIATE_GRAM(float, float)
INSTANTIATE_GRAM(double, float)
INSTANTIATE_GRAM(double, double)

#define INSTANTIATE(T)                                                                                   \
  template void gram_gradient<T>(const Cuda&, const ChunkedRecurrence<T>&, const OutputGradients<T>&, T, \
                                 bool, const Heads<T>&);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
