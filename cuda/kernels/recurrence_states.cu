// The recurrence on a GPU: states. What each chunk adds to them, in parallel; then the states, one after the
// other along each row. V stands for what the keys write, with the delta rule diag(beta) R.
//
//   kernel          a block owns            FLOPs, a chunk of C tokens    numbers moved
//   write_kernel    64 x 64 of one state    2 C dk dv                     C 64 of K, and of V, and 64 x 64
//   pass_kernel     256 numbers of all      2 dk dv                       2 dk dv a chunk
//
// The backward kernels do the same, and those of normalisers do it for one column. Shared memory: the slabs
// of tile products.
#include "cuda/kernels/recurrence.cuh"

namespace mixgrad {

namespace {

/// What a chunk adds to the state after it, (K e^{b_C - b})^T V.
template <class T>
__global__ void write_kernel(ChunkedRecurrence<T> r, StateRows<T> after) {
  BlockNumber block;
  const int column = block.next_tile(r.dv());
  const int row = block.next_tile(r.dk());
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  T* state = at.after(after);
  if (state == nullptr) return;
  const auto k = at.k();
  const auto v = at.written();
  Tile<T> tile(row, r.dk(), column, r.dv());
  tile.add_product(0, at.length, AcrossDepth([&](int m, int j) { return k(j, m) * at.until_end(j, m); }),
                   AcrossDepth([&](int j, int e) { return v(j, e); }));
  tile.for_each([&](int m, int e, T sum) { state[int64_t{m} * r.dv() + e] = sum; });
}

/// What its reads add to the gradient of the state before it, (scale Q e^b)^T dnum, where o = num / den.
template <class T>
__global__ void write_backward_kernel(ChunkedRecurrence<T> r, OutputGradients<T> d, StateRows<T> dbefore) {
  BlockNumber block;
  const int column = block.next_tile(r.dv());
  const int row = block.next_tile(r.dk());
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  T* dstate = at.before(dbefore);
  if (dstate == nullptr) return;
  const auto q = at.q();
  const auto dnum = at.numerators(d);
  const T scale = static_cast<T>(r.s.scale);
  Tile<T> tile(row, r.dk(), column, r.dv());
  tile.add_product(0, at.length,
                   AcrossDepth([&](int m, int i) { return scale * q(i, m) * at.since_start(i, m); }),
                   AcrossDepth([&](int i, int e) { return dnum(i, e); }));
  tile.for_each([&](int m, int e, T sum) { dstate[int64_t{m} * r.dv() + e] = sum; });
}

/// The same for normalisers, sum over j of k_j e^{b_C - b_j}; a thread has one number.
template <class T>
__global__ void write_normaliser_kernel(ChunkedRecurrence<T> r, StateRows<T> after) {
  BlockNumber thread{int64_t{blockIdx.x} * blockDim.x + threadIdx.x};
  const int m = thread.next(r.dk());
  const int head = thread.next(r.s.heads);
  if (thread.rest >= r.chunk_count) return;
  const ChunkHead<T> at(r, thread.rest, head);
  T* normaliser = at.after(after);
  if (normaliser == nullptr) return;
  T sum = 0;
  for (int j = 0; j < at.length; ++j) sum += at.k()(j, m) * at.until_end(j, m);
  normaliser[m] = sum;
}

/// scale times the sum over i of dden_i q_i e^{b_i}
template <class T>
__global__ void write_normaliser_backward_kernel(ChunkedRecurrence<T> r, OutputGradients<T> d,
                                                 StateRows<T> dbefore) {
  BlockNumber thread{int64_t{blockIdx.x} * blockDim.x + threadIdx.x};
  const int m = thread.next(r.dk());
  const int head = thread.next(r.s.heads);
  if (thread.rest >= r.chunk_count) return;
  const ChunkHead<T> at(r, thread.rest, head);
  T* dnormaliser = at.before(dbefore);
  if (dnormaliser == nullptr) return;
  const auto dden = at.scalars(d.dden);
  T sum = 0;
  for (int i = 0; i < at.length; ++i) sum += dden(i) * at.q()(i, m) * at.since_start(i, m);
  dnormaliser[m] = static_cast<T>(r.s.scale) * sum;
}

/// What a thread of a pass has: number i of the states of one head in one row.
template <class T>
struct PassNumber {
  int i, head;
  int64_t row;
  int m;  // its key channel

  __device__ PassNumber(const ChunkedRecurrence<T>& r, int64_t size) {
    BlockNumber thread{int64_t{blockIdx.x} * blockDim.x + threadIdx.x};
    i = thread.next(size);
    head = thread.next(r.s.heads);
    row = thread.rest;
    m = i / static_cast<int>(size / r.dk());
  }
};

/// S after each chunk += e^{b_C} S before it.
template <class T>
__global__ void pass_kernel(ChunkedRecurrence<T> r, StateRows<const T> before, StateRows<T> after) {
  const PassNumber<T> my(r, after.size);
  if (my.row >= r.s.batch) return;
  T state = 0;
  for (int64_t c = r.row_begin[my.row]; c < r.row_begin[my.row + 1]; ++c) {
    const ChunkHead<T> at(r, c, my.head);
    const T* from = at.before(before);
    T* to = at.after(after);
    if (from == nullptr) state = 0;
    if (from != nullptr && at.chunk.first) state = from[my.i];  // else the thread has just written it
    if (to == nullptr) continue;
    state = to[my.i] + at.whole(my.m) * state;
    to[my.i] = state;
  }
}

/// dS before each chunk += e^{b_C} dS after it, from the last chunk on.
template <class T>
__global__ void pass_backward_kernel(ChunkedRecurrence<T> r, StateRows<const T> dafter,
                                     StateRows<T> dbefore) {
  const PassNumber<T> my(r, dbefore.size);
  if (my.row >= r.s.batch) return;
  T dstate = 0;
  for (int64_t c = r.row_begin[my.row + 1] - 1; c >= r.row_begin[my.row]; --c) {
    const ChunkHead<T> at(r, c, my.head);
    const T* from = at.after(dafter);
    T* to = at.before(dbefore);
    if (from == nullptr) dstate = 0;
    if (from != nullptr && at.chunk.last) dstate = from[my.i];
    if (to == nullptr) continue;
    dstate = to[my.i] + at.whole(my.m) * dstate;
    to[my.i] = dstate;
  }
}

template <class T>
Launch states_launch(const ChunkedRecurrence<T>& r) {
  const int64_t tiles = tiles_of(r.s.key_dim) * tiles_of(r.s.value_dim);
  return {blocks_for(r.chunk_count * r.s.heads * tiles, 1), tile_threads};
}

template <class T>
Launch normalisers_launch(const ChunkedRecurrence<T>& r) {
  return {blocks_for(r.chunk_count * r.s.heads * r.s.key_dim, 256), 256};
}

template <class T>
Launch pass_launch(const ChunkedRecurrence<T>& r, int64_t size) {
  return {blocks_for(r.s.batch * r.s.heads * size, 256), 256};
}

}  // namespace

template <class T>
void write_states(const Cuda& device, const ChunkedRecurrence<T>& r, const States<T>& after) {
  launch_some<write_kernel<T>>(device, states_launch(r), r, after.matrices);
  if (!r.s.normalise) return;
  launch_some<write_normaliser_kernel<T>>(device, normalisers_launch(r), r, after.normalisers);
}

template <class T>
void reads_backward(const Cuda& device, const ChunkedRecurrence<T>& r, const OutputGradients<T>& d,
                    const States<T>& dbefore) {
  launch_some<write_backward_kernel<T>>(device, states_launch(r), r, d, dbefore.matrices);
  if (!r.s.normalise) return;
  launch_some<write_normaliser_backward_kernel<T>>(device, normalisers_launch(r), r, d, dbefore.normalisers);
}

template <class T>
void pass_states(const Cuda& device, const ChunkedRecurrence<T>& r, const States<const T>& before,
                 const States<T>& after) {
  launch_some<pass_kernel<T>>(device, pass_launch(r, after.matrices.size), r, before.matrices,
                              after.matrices);
  if (!r.s.normalise) return;
  launch_some<pass_kernel<T>>(device, pass_launch(r, r.s.key_dim), r, before.normalisers, after.normalisers);
}

template <class T>
void pass_states_backward(const Cuda& device, const ChunkedRecurrence<T>& r, const States<const T>& dafter,
                          const States<T>& dbefore) {
  launch_some<pass_backward_kernel<T>>(device, pass_launch(r, dbefore.matrices.size), r, dafter.matrices,
                                       dbefore.matrices);
  if (!r.s.normalise) return;
  launch_some<pass_backward_kernel<T>>(device, pass_launch(r, r.s.key_dim), r, dafter.normalisers,
                                       dbefore.normalisers);
}

#define INSTANTIATE(T)                                                                                    \
  template void write_states<T>(const Cuda&, const ChunkedRecurrence<T>&, const States<T>&);              \
  template void reads_backward<T>(const Cuda&, const ChunkedRecurrence<T>&, const OutputGradients<T>&,    \
                                  const States<T>&);                                                      \
  template void pass_states<T>(const Cuda&, const ChunkedRecurrence<T>&, const States<const T>&,          \
                               const States<T>&);                                                         \
  template void pass_states_backward<T>(const Cuda&, const ChunkedRecurrence<T>&, const States<const T>&, \
                                        const States<T>&);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
