// The step sizes of Longhorn on a GPU.
//
// A block owns four keys, a warp one of them: its lanes share out the entries of the key for its length, then
// the heads that read it. Bytes moved: keys and heads once, keys twice backward; FLOPs: 2 for each entry of a
// key, 4 backward. No shared memory.
#include "tensor/kernels/longhorn.h"

#include "cuda/device_code.h"
#include "cuda/kernels/block.cuh"

namespace mixgrad {

namespace {

constexpr int warps_of_block = 4;

/// Calls f(row of k, lane) for each token and key head, in all lanes of a warp.
template <class F>
__global__ void key_kernel(int64_t rows, F f) {
  const int64_t row = int64_t{blockIdx.x} * warps_of_block + threadIdx.x / 32;
  if (row < rows) f(row, static_cast<int>(threadIdx.x % 32));
}

template <class F>
void for_each_key(const Cuda& device, const LonghornShape& s, const F& f) {
  const int64_t rows = s.tokens * s.key_heads;
  if (rows == 0) return;
  launch<key_kernel<F>>(device, {blocks_for(rows, warps_of_block), 32 * warps_of_block}, rows, f);
}

/// |k|^2, in every lane.
template <class T>
__device__ T squared_length(int64_t dim, const T* k, int lane) {
  T sum = 0;
  for (int64_t m = lane; m < dim; m += 32) sum += k[m] * k[m];
  return warp_reduce<Sum>(sum);
}

}  // namespace

template <class T>
void longhorn_rate_forward(Cuda device, const LonghornShape& s, const T* k, const T* beta, T* rate) {
  const int64_t dim = s.key_dim;
  const int64_t group = s.heads / s.key_heads;
  for_each_key(device, s, [=] __device__(int64_t row, int lane) {
    const T n = squared_length(dim, k + row * dim, lane);
    for (int64_t h = row * group + lane; h < (row + 1) * group; h += 32)
      rate[h] = beta[h] / (1 + beta[h] * n);
  });
}

template <class T>
void longhorn_rate_backward(Cuda device, const LonghornShape& s, const T* k, const T* beta, const T* drate,
                            T* dk, T* dbeta) {
  const int64_t dim = s.key_dim;
  const int64_t group = s.heads / s.key_heads;
  for_each_key(device, s, [=] __device__(int64_t row, int lane) {
    const T* key = k + row * dim;
    const T n = squared_length(dim, key, lane);
    T dn = 0;
    for (int64_t h = row * group + lane; h < (row + 1) * group; h += 32) {
      const T inverse = 1 / (1 + beta[h] * n);
      const T rate = beta[h] * inverse;
      dbeta[h] = inverse * inverse * drate[h];
      dn -= rate * rate * drate[h];
    }
    dn = warp_reduce<Sum>(dn);
    for (int64_t m = lane; m < dim; m += 32) dk[row * dim + m] = 2 * dn * key[m];
  });
}

#define INSTANTIATE(T)                                                                        \
  template void longhorn_rate_forward<T>(Cuda, const LonghornShape&, const T*, const T*, T*); \
  template void longhorn_rate_backward<T>(Cuda, const LonghornShape&, const T*, const T*, const T*, T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
