// Conjugate gradients on a GPU.
//
// A warp owns one system: its lanes share out the unknowns. A step reads four vectors of a system and writes
// three, at 11 FLOPs for each unknown, and asks the host once, by a flag that converged warps leave alone. No
// shared memory.
#include "tensor/kernels/conjugate_gradient.h"

#include <limits>

#include "cuda/device_code.h"
#include "cuda/kernels/block.cuh"
#include "cuda/runtime.h"
#include "tensor/allocator.h"

namespace mixgrad {

namespace {

constexpr int warps_of_block = 4;

/// Calls f(row, lane) for each system, in all lanes of a warp.
template <class F>
__global__ void system_kernel(int64_t rows, F f) {
  const int64_t row = int64_t{blockIdx.x} * warps_of_block + threadIdx.x / 32;
  if (row < rows) f(row, static_cast<int>(threadIdx.x % 32));
}

template <class F>
void for_each_system(const Cuda& device, int64_t rows, const F& f) {
  if (rows == 0) return;
  launch<system_kernel<F>>(device, {blocks_for(rows, warps_of_block), 32 * warps_of_block}, rows, f);
}

/// Sum of term(i) over i < n, in every lane.
template <class T, class Term>
__device__ T lane_sum(int64_t n, int lane, const Term& term) {
  T sum = 0;
  for (int64_t i = lane; i < n; i += 32) sum += term(i);
  return warp_reduce<Sum>(sum);
}

/// One block: *any = whether any row's square is above its limit, or NaN.
template <class T>
__global__ void unfinished_kernel(int64_t rows, const T* squares, const T* limits, int32_t* any) {
  const int32_t count =
      block_sum<int32_t>(rows, [=](int64_t row) { return squares[row] <= limits[row] ? 0 : 1; });
  if (threadIdx.x == 0) *any = count > 0 ? 1 : 0;
}

}  // namespace

template <class T>
void conjugate_gradient_start(Cuda device, const LinearSystems& s, const T* b,
                              const ConjugateGradients<T>& given) {
  const ConjugateGradients<T> cg = given;
  const int64_t n = s.columns;
  const T eps = std::numeric_limits<T>::epsilon();
  for_each_system(device, s.rows, [=] __device__(int64_t row, int lane) {
    for (int64_t i = row * n + lane; i < (row + 1) * n; i += 32) {
      cg.x[i] = 0;
      cg.residual[i] = b[i];
      cg.direction[i] = b[i];
    }
    const T square = lane_sum<T>(n, lane, [=](int64_t i) { return b[row * n + i] * b[row * n + i]; });
    if (lane != 0) return;
    cg.squares[row] = square;
    cg.limits[row] = eps * eps * square;
  });
}

template <class T>
bool conjugate_gradient_step(Cuda device, const LinearSystems& s, const T* diagonal, const T* product,
                             const ConjugateGradients<T>& given) {
  if (s.rows == 0) return false;
  const ConjugateGradients<T> cg = given;
  const int64_t n = s.columns;
  const int64_t heads = s.heads;
  for_each_system(device, s.rows, [=] __device__(int64_t row, int lane) {
    const T before = cg.squares[row];
    if (before <= cg.limits[row]) return;
    const T* lambda = diagonal + row % heads * n;
    const T* ap = product + row * n;
    T* x = cg.x + row * n;
    T* r = cg.residual + row * n;
    T* p = cg.direction + row * n;
    const T a = before / lane_sum<T>(n, lane, [=](int64_t i) { return p[i] * (ap[i] + lambda[i] * p[i]); });
    T after = 0;
    for (int64_t i = lane; i < n; i += 32) {
      x[i] += a * p[i];
      r[i] -= a * (ap[i] + lambda[i] * p[i]);
      after += r[i] * r[i];
    }
    after = warp_reduce<Sum>(after);
    for (int64_t i = lane; i < n; i += 32) p[i] = r[i] + after / before * p[i];
    __syncwarp();  // all lanes have read squares[row]
    if (lane == 0) cg.squares[row] = after;
  });
  Scratch<int32_t> any(1, device);
  launch<unfinished_kernel<T>>(device, {1, threads_for_row(s.rows)}, s.rows, cg.squares, cg.limits,
                               any.data());
  int32_t found = 0;
  cuda::copy_to_host(device, &found, any.data(), sizeof(found));
  return found != 0;
}

#define INSTANTIATE(T)                                                                     \
  template void conjugate_gradient_start<T>(Cuda, const LinearSystems&, const T*,          \
                                            const ConjugateGradients<T>&);                 \
  template bool conjugate_gradient_step<T>(Cuda, const LinearSystems&, const T*, const T*, \
                                           const ConjugateGradients<T>&);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
