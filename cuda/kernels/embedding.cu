// Table look-up on a GPU.
//
// Backward, a block owns 64 rows of the table. It reads all ids, 256 at a time, and lists those that are its
// own in their order, by ballots and a prefix sum; then it adds the listed rows of dy, a thread having the
// columns threadIdx.x, threadIdx.x + 256, ... Every sum has the order of the ids: no atomics, no sorting.
// Shared memory: 256 places in the list and 8 counts, 1056 bytes.
//
//   kernel             bytes moved                               FLOPs
//   forward            2 count columns sizeof(T)                 0
//   backward_kernel    (vocabulary + count) columns sizeof(T)    count columns
//
// The ids, out of the L2 cache, are read vocabulary / 64 times: 51 MB for 16384 ids and 50257 rows.
#include "tensor/kernels/embedding.h"

#include "cuda/device_code.h"
#include "cuda/kernels/map.cuh"
#include "cuda/kernels/rows.cuh"

namespace mixgrad {

namespace {

/// One block: how many ids there are from the first on that isn't in [0, vocabulary). 0 is none, and what a
/// measurement of memory, which launches nothing, finds.
__global__ void find_invalid(EmbeddingShape shape, const int32_t* ids, int64_t* result) {
  int64_t from_first = 0;
  for (int64_t i = threadIdx.x; i < shape.count; i += blockDim.x) {
    if (ids[i] < 0 || ids[i] >= shape.vocabulary) from_first = max(from_first, shape.count - i);
  }
  from_first = block_reduce<Maximum>(from_first, int64_t{0});
  if (threadIdx.x == 0) *result = from_first;
}

}  // namespace

int64_t first_invalid_id(Cuda device, EmbeddingShape shape, const int32_t* ids) {
  Scratch<int64_t> result(1, device);
  launch<find_invalid>(device, {1, threads_for_row(shape.count)}, shape, ids, result.data());
  int64_t from_first = 0;
  cuda::copy_to_host(device, &from_first, result.data(), sizeof(from_first));
  return from_first == 0 ? -1 : shape.count - from_first;
}

template <class T>
void embedding_forward(Cuda device, EmbeddingShape shape, const int32_t* ids, const T* weight, T* y) {
  const int64_t columns = shape.columns;
  map(device, shape.count * columns,
      [=] __device__(int64_t i) { y[i] = weight[ids[i / columns] * columns + i % columns]; });
}

namespace {

constexpr int table_rows = 64;
constexpr int id_threads = 256;

template <class T>
__global__ void embedding_backward_kernel(EmbeddingShape shape, const int32_t* ids, const T* dy, T* dweight) {
  __shared__ SharedArray<int, id_threads / 32> found_by_warp;
  __shared__ SharedArray<int, id_threads> listed;
  const int thread = threadIdx.x;
  const int64_t first_row = int64_t{blockIdx.x} * table_rows;
  const int64_t end_row = min(shape.vocabulary, first_row + table_rows);
  for (int64_t row = first_row; row < end_row; ++row) {
    for_my_columns(shape.columns, [=](int64_t j) { dweight[row * shape.columns + j] = 0; });
  }
  for (int64_t start = 0; start < shape.count; start += id_threads) {
    const bool in_range = start + thread < shape.count;
    const int64_t id = in_range ? ids[start + thread] : -1;
    const bool mine = id >= first_row && id < end_row;
    const unsigned found = __ballot_sync(0xFFFFFFFF, mine);
    if (thread % 32 == 0) found_by_warp[thread / 32] = __popc(found);
    __syncthreads();
    int place = __popc(found & ((1u << thread % 32) - 1));
    int total = 0;
    for (int warp = 0; warp < id_threads / 32; ++warp) {
      if (warp < thread / 32) place += found_by_warp[warp];
      total += found_by_warp[warp];
    }
    if (mine) listed[place] = thread;
    __syncthreads();
    for (int k = 0; k < total; ++k) {
      const int64_t i = start + listed[k];
      const T* row = dy + i * shape.columns;
      T* sum = dweight + ids[i] * shape.columns;
      for_my_columns(shape.columns, [=](int64_t j) { sum[j] += row[j]; });
    }
  }
}

}  // namespace

template <class T>
void embedding_backward(Cuda device, EmbeddingShape shape, const int32_t* ids, const T* dy, T* dweight) {
  if (shape.vocabulary == 0) return;
  launch<embedding_backward_kernel<T>>(device, {blocks_for(shape.vocabulary, table_rows), id_threads}, shape,
                                       ids, dy, dweight);
}

#define INSTANTIATE(T)                                                                    \
  template void embedding_forward<T>(Cuda, EmbeddingShape, const int32_t*, const T*, T*); \
  template void embedding_backward<T>(Cuda, EmbeddingShape, const int32_t*, const T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
