// The recurrence on a GPU: what the delta rule corrects. The residuals R = U - W S of a chunk come from one
// triangular system with two right sides,
//
//   (I + N diag(beta)) [W U] = [K e^b  V]
//
// which is solved for all chunks at once; then the states go from chunk to chunk, with the residuals.
//
//   kernel                    owns                                     FLOPs, a chunk of C tokens
//   solve_kernel              a thread a column of W or U              C^2 (dk + dv)
//   solve_backward_kernel     a thread a column of V                   C^2 dv
//   correct_kernel            a block 32 columns of a row's states     4 C dk dv
//   correct_backward_kernel   the same                                 4 C dk dv
//   rate_kernel               a warp a token                           2 C dv
//
// Bytes moved: the solvers read N and the part that is solved once for each 16 rows, from the L1 and L2
// caches, and write each column once. The passes read C dk numbers of K and of W for each 32 columns, and
// read and write the states and C dv numbers of R or its gradient once. Shared memory: the slabs of tile
// products.
#include "cuda/kernels/recurrence.cuh"

namespace mixgrad {

namespace {

constexpr int solve_threads = 64;
constexpr int solve_rows = 16;  // that a thread has in registers

/// x_i = given(i) - the sum over j < i of N_ij beta_j x_j: one column of the system, by substitution. x(i) is
/// where the thread keeps it.
template <class T, class Given, class X>
__device__ void solve_lower(int length, const ChunkRows<const T>& N, const ChunkRows<const T>& beta,
                            const Given& given, const X& x) {
  for (int begin = 0; begin < length; begin += solve_rows) {
    const int rows = min(solve_rows, length - begin);
    T values[solve_rows];
#pragma unroll
    for (int i = 0; i < solve_rows; ++i) values[i] = i < rows ? given(begin + i) : T(0);
    for (int j = 0; j < begin; ++j) {
      const T scaled = beta(j) * x(j);
#pragma unroll
      for (int i = 0; i < solve_rows; ++i) {
        if (i < rows) values[i] -= N(begin + i, j) * scaled;
      }
    }
#pragma unroll
    for (int j = 0; j < solve_rows; ++j) {
      if (j >= rows) break;
      const T scaled = beta(begin + j) * values[j];
#pragma unroll
      for (int i = j + 1; i < solve_rows; ++i) {
        if (i < rows) values[i] -= N(begin + i, begin + j) * scaled;
      }
      x(begin + j) = values[j];
    }
  }
}

/// x_j = given(j) - the sum over i > j of N_ij beta_i x_i: the transpose, from the last row on.
template <class T, class X>
__device__ void solve_lower_transposed(int length, const ChunkRows<const T>& N,
                                       const ChunkRows<const T>& beta, const X& x) {
  for (int begin = (length - 1) / solve_rows * solve_rows; begin >= 0; begin -= solve_rows) {
    const int rows = min(solve_rows, length - begin);
    T values[solve_rows];
#pragma unroll
    for (int j = 0; j < solve_rows; ++j) values[j] = j < rows ? x(begin + j) : T(0);
    for (int i = begin + rows; i < length; ++i) {
      const T scaled = beta(i) * x(i);
#pragma unroll
      for (int j = 0; j < solve_rows; ++j) {
        if (j < rows) values[j] -= N(i, begin + j) * scaled;
      }
    }
#pragma unroll
    for (int i = solve_rows - 1; i >= 0; --i) {
      if (i >= rows) continue;
      const T scaled = beta(begin + i) * values[i];
#pragma unroll
      for (int j = 0; j < i; ++j) values[j] -= N(begin + i, begin + j) * scaled;
      x(begin + i) = values[i];
    }
  }
}

/// The columns of W, and of U unless it has no data: U goes where R will be.
template <class T>
__global__ void solve_kernel(ChunkedRecurrence<T> r, Heads<const T> gram, Heads<T> w_heads,
                             Heads<T> u_heads) {
  const int columns = r.dk() + (u_heads.data != nullptr ? r.dv() : 0);
  BlockNumber block;
  const int column = block.next_tile(columns, solve_threads) + threadIdx.x;
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  const auto N = at.rows(gram);
  const auto beta = at.scalars(r.in.beta);
  if (column < r.dk()) {
    const auto w = at.rows(w_heads);
    solve_lower<T>(
        at.length, N, beta, [&](int i) { return at.k()(i, column) * at.since_start(i, column); },
        [&](int i) -> T& { return w(i, column); });
  } else if (column < columns) {
    const int e = column - r.dk();
    const auto u = at.rows(u_heads);
    solve_lower<T>(
        at.length, N, beta, [&](int i) { return at.rows(r.in.v)(i, e); },
        [&](int i) -> T& { return u(i, e); });
  }
}

/// From the gradient dX of what the keys write, as far as it is read by others, to the whole one, in its
/// place: dX_j = given_j - the sum over i > j of N_ij beta_i dX_i; and dV = diag(beta) dX.
template <class T>
__global__ void solve_backward_kernel(ChunkedRecurrence<T> r, Heads<const T> gram, Heads<T> dwritten,
                                      Heads<T> dv_heads) {
  BlockNumber block;
  const int e = block.next_tile(r.dv(), solve_threads) + threadIdx.x;
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  if (e >= r.dv()) return;
  const auto beta = at.scalars(r.in.beta);
  const auto dx = at.rows(dwritten);
  const auto dv = at.rows(dv_heads);
  solve_lower_transposed<T>(at.length, at.rows(gram), beta, [&](int j) -> T& { return dx(j, e); });
  for (int j = 0; j < at.length; ++j) dv(j, e) = beta(j) * dx(j, e);
}

/// dbeta_i = dX_i . r_i
template <class T>
__global__ void rate_kernel(ChunkedRecurrence<T> r, Heads<T> dwritten, T* dbeta) {
  BlockNumber block;
  const int i = block.next_tile(r.longest, 8) + threadIdx.x / 32;
  const int head = block.next(r.s.heads);
  const ChunkHead<T> at(r, block.rest, head);
  if (i >= at.length) return;
  T dot = 0;
  for (int e = threadIdx.x % 32; e < r.dv(); e += 32)
    dot += at.rows(dwritten)(i, e) * at.rows(r.residuals)(i, e);
  dot = warp_reduce<Sum>(dot);
  if (threadIdx.x % 32 == 0) at.scalars(dbeta)(i) = dot;
}

template <class T>
using PassTile = Tile<T, 4, 2>;  // narrow: only columns of states can be computed at the same time

/// Along a row, R = U - W S and S' = e^{b_C} S + (K e^{b_C - b})^T X with X = diag(beta) R.
template <class T>
__global__ void correct_kernel(ChunkedRecurrence<T> r, Heads<T> corrections, StateRows<const T> before,
                               StateRows<T> after, Heads<T> residuals) {
  BlockNumber block;
  const int column = block.next_tile(r.dv(), PassTile<T>::columns);
  const int head = block.next(r.s.heads);
  const int64_t row = block.rest;
  for (int64_t c = r.row_begin[row]; c < r.row_begin[row + 1]; ++c) {
    const ChunkHead<T> at(r, c, head);
    const T* state = at.before(before);
    T* next = at.after(after);
    const auto k = at.k();
    const auto w = at.rows(corrections);
    const auto residual = at.rows(residuals);
    for (int i = 0; i < at.length && state != nullptr; i += PassTile<T>::rows) {
      PassTile<T> tile(i, at.length, column, r.dv());
      tile.add_product(0, r.dk(), AlongDepth([&](int i, int m) { return w(i, m); }),
                       AcrossDepth([&](int m, int e) { return state[int64_t{m} * r.dv() + e]; }));
      tile.for_each([&](int i, int e, T sum) { residual(i, e) -= sum; });
    }
    const auto x = at.written();
    for (int m = 0; m < r.dk() && next != nullptr; m += PassTile<T>::rows) {
      PassTile<T> tile(m, r.dk(), column, r.dv());
      tile.add_product(0, at.length, AcrossDepth([&](int m, int j) { return k(j, m) * at.until_end(j, m); }),
                       AcrossDepth([&](int j, int e) { return x(j, e); }));
      tile.for_each([&](int m, int e, T sum) {
        const int64_t place = int64_t{m} * r.dv() + e;
        next[place] = sum + (state == nullptr ? T(0) : at.whole(m) * state[place]);
      });
    }
  }
}

/// From the end of a row, dX += (K e^{b_C - b}) dS' and dS += e^{b_C} dS' - (diag(beta) W)^T dX.
template <class T>
__global__ void correct_backward_kernel(ChunkedRecurrence<T> r, Heads<T> corrections,
                                        StateRows<const T> dafter, StateRows<T> dbefore, Heads<T> dwritten) {
  BlockNumber block;
  const int column = block.next_tile(r.dv(), PassTile<T>::columns);
  const int head = block.next(r.s.heads);
  const int64_t row = block.rest;
  for (int64_t c = r.row_begin[row + 1] - 1; c >= r.row_begin[row]; --c) {
    const ChunkHead<T> at(r, c, head);
    const T* dnext = at.after(dafter);
    T* dstate = at.before(dbefore);
    const auto k = at.k();
    const auto w = at.rows(corrections);
    const auto beta = at.scalars(r.in.beta);
    const auto dx = at.rows(dwritten);
    for (int j = 0; j < at.length && dnext != nullptr; j += PassTile<T>::rows) {
      PassTile<T> tile(j, at.length, column, r.dv());
      tile.add_product(0, r.dk(), AlongDepth([&](int j, int m) { return k(j, m) * at.until_end(j, m); }),
                       AcrossDepth([&](int m, int e) { return dnext[int64_t{m} * r.dv() + e]; }));
      tile.for_each([&](int j, int e, T sum) { dx(j, e) += sum; });
    }
    for (int m = 0; m < r.dk() && dstate != nullptr; m += PassTile<T>::rows) {
      PassTile<T> tile(m, r.dk(), column, r.dv());
      tile.add_product(0, at.length, AcrossDepth([&](int m, int i) { return beta(i) * w(i, m); }),
                       AcrossDepth([&](int i, int e) { return dx(i, e); }));
      tile.for_each([&](int m, int e, T sum) {
        const int64_t place = int64_t{m} * r.dv() + e;
        dstate[place] += (dnext == nullptr ? T(0) : at.whole(m) * dnext[place]) - sum;
      });
    }
  }
}

template <class T>
Launch pass_launch(const ChunkedRecurrence<T>& r) {
  const int64_t tiles = tiles_of(r.s.value_dim, PassTile<T>::columns);
  return {blocks_for(r.s.batch * r.s.heads * tiles, 1), tile_threads};
}

}  // namespace

template <class T>
void solve_corrections(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<T>& gram,
                       const Heads<T>& corrections, const Heads<T>& residuals) {
  const int64_t columns = r.s.key_dim + (residuals.data != nullptr ? r.s.value_dim : 0);
  const int64_t blocks = r.chunk_count * r.s.heads * tiles_of(columns, solve_threads);
  launch_some<solve_kernel<T>>(device, {blocks_for(blocks, 1), solve_threads}, r, Heads<const T>(gram),
                               corrections, residuals);
}

template <class T>
void correct_states(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<T>& corrections,
                    const States<const T>& before, const States<T>& after, const Heads<T>& residuals) {
  launch_some<correct_kernel<T>>(device, pass_launch(r), r, corrections, before.matrices, after.matrices,
                                 residuals);
}

template <class T>
void correct_states_backward(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<T>& corrections,
                             const States<const T>& dafter, const States<T>& dbefore,
                             const Heads<T>& dwritten) {
  launch_some<correct_backward_kernel<T>>(device, pass_launch(r), r, corrections, dafter.matrices,
                                          dbefore.matrices, dwritten);
}

template <class T>
void solve_backward(const Cuda& device, const ChunkedRecurrence<T>& r, const Heads<T>& gram,
                    const Heads<T>& dwritten, const Heads<T>& dv, T* dbeta) {
  const int64_t pieces = r.chunk_count * r.s.heads;
  const int64_t blocks = pieces * tiles_of(r.s.value_dim, solve_threads);
  launch_some<solve_backward_kernel<T>>(device, {blocks_for(blocks, 1), solve_threads}, r,
                                        Heads<const T>(gram), dwritten, dv);
  launch_some<rate_kernel<T>>(device, {blocks_for(pieces * tiles_of(r.longest, 8), 1), 256}, r, dwritten,
                              dbeta);
}

#define INSTANTIATE(T)                                                                                 \
  template void solve_corrections<T>(const Cuda&, const ChunkedRecurrence<T>&, const Heads<T>&,        \
                                     const Heads<T>&, const Heads<T>&);                                \
  template void correct_states<T>(const Cuda&, const ChunkedRecurrence<T>&, const Heads<T>&,           \
                                  const States<const T>&, const States<T>&, const Heads<T>&);          \
  template void correct_states_backward<T>(const Cuda&, const ChunkedRecurrence<T>&, const Heads<T>&,  \
                                           const States<const T>&, const States<T>&, const Heads<T>&); \
  template void solve_backward<T>(const Cuda&, const ChunkedRecurrence<T>&, const Heads<T>&,           \
                                  const Heads<T>&, const Heads<T>&, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
