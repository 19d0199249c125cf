// Matrix products on a GPU. With cuBLAS (MIXGRAD_CUBLAS) it computes the product, in float without TF32, and
// a loop over C applies the epilogue; otherwise, as in the simulator, one kernel of our own does both.
//
//   kernel           a block owns             bytes moved                              FLOPs
//   product_kernel   a 64 x 64 tile of C      2 (m n k / 64) sizeof(T), most of them   2 m n k
//                                             from the L2 cache, and C once or twice
//   bias_sums        a stretch of rows        sizeof(T) for each of dy                 1 for each of dy
//
// Shared memory of product_kernel: two slabs of 16 x 65 elements, 8 KB for float and 17 KB for double. The
// sum of an element of C runs over k from first to last in one thread.
#include "tensor/kernels/gemm.h"

#include "cuda/device_code.h"
#include "cuda/kernels/map.cuh"
#include "cuda/kernels/rows.cuh"
#include "tensor/kernels/scalar.h"
#if defined(MIXGRAD_CUBLAS)
#include <cublas_v2.h>

#include <map>
#endif

namespace mixgrad {

namespace {

GemmShape with_strides(GemmShape s) {
  if (s.lda == 0) s.lda = s.a == Transpose::yes ? s.m : s.k;
  if (s.ldb == 0) s.ldb = s.b == Transpose::yes ? s.k : s.n;
  if (s.ldc == 0) s.ldc = s.n;
  return s;
}

/// Makes what the epilogue wants of an element of the product.
template <class T>
__device__ void finish(const Epilogue<T>& epilogue, int64_t place, int64_t column, T value, T* c) {
  if (epilogue.bias != nullptr) value += epilogue.bias[column];
  if (epilogue.gelu != nullptr) epilogue.gelu[place] = GeluTanh::value(value);
  if (epilogue.gelu_input != nullptr) value *= GeluTanh::slope(epilogue.gelu_input[place]);
  c[place] = value;
}

#if defined(MIXGRAD_CUBLAS)

void check_cublas(cublasStatus_t status) {
  check(status == CUBLAS_STATUS_SUCCESS, "[cuda] cuBLAS: ", cublasGetStatusString(status));
}

/// This host thread's handle for the device, set to its stream. TF32 is used only where it is asked for.
cublasHandle_t cublas_handle(const Cuda& device) {
  thread_local std::map<int, cublasHandle_t> handles;  // never destroyed: the driver may be gone before us
  check(cudaSetDevice(device.index) == cudaSuccess, "[cuda] cudaSetDevice on device ", device.index,
        " failed");
  const auto [entry, is_new] = handles.try_emplace(device.index, nullptr);
  if (is_new) check_cublas(cublasCreate(&entry->second));
  check_cublas(cublasSetStream(entry->second, static_cast<cudaStream_t>(device.stream)));
  return entry->second;
}

template <class T>
void product(const Cuda& device, const GemmShape& s, const GemmBatch& batch, T alpha, const T* a, const T* b,
             T beta, T* c, const Epilogue<T>& epilogue) {
  const cublasHandle_t handle = cublas_handle(device);
  const auto gemm_of_type = [] {
    if constexpr (sizeof(T) == 4)
      return &cublasSgemmStridedBatched_64;
    else
      return &cublasDgemmStridedBatched_64;
  }();
  const auto operation = [](Transpose t) { return t == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const auto stride = [](int64_t rows_apart) { return std::max<int64_t>(1, rows_apart); };
  // cuBLAS stores columns. What lies row by row is to it the transpose, and C^T = op(B)^T op(A)^T.
  for (int64_t outer = 0; outer < batch.outer; ++outer) {
    check_cublas(gemm_of_type(handle, operation(s.b), operation(s.a), s.n, s.m, s.k, &alpha,
                              b + outer * batch.b_outer, stride(s.ldb), batch.b_inner,
                              a + outer * batch.a_outer, stride(s.lda), batch.a_inner, &beta,
                              c + outer * batch.c_outer, stride(s.ldc), batch.c_inner, batch.inner));
  }
  if (!epilogue.bias && !epilogue.gelu && !epilogue.gelu_input) return;
  map(device, s.m * s.n, [=] __device__(int64_t i) {
    const int64_t place = i / s.n * s.ldc + i % s.n;
    finish(epilogue, place, i % s.n, c[place], c);
  });
}

#else

constexpr int tile = 64;                 // rows and columns of C that a block owns
constexpr int depth = 16;                // of k at a time
constexpr int side = 16;                 // side x side threads; neighbours have neighbouring columns
constexpr int per_thread = tile / side;  // rows and columns of a thread, `side` apart
constexpr int slab_row = tile + 1;       // an odd distance: writes down a column go to different banks
constexpr int slab_elements = depth * slab_row;

/// A matrix [rows, k], element (i, p) at i row_stride + p depth_stride.
template <class T>
struct Operand {
  const T* values;
  int64_t rows, k;
  int64_t row_stride, depth_stride;

  /// slab[p, i] = element (row + i, first + p); zero outside the matrix. Neighbouring threads read
  /// neighbouring elements, whichever of the strides is 1.
  __device__ void load(int64_t row, int64_t first, T* slab) const {
    for (int e = threadIdx.x; e < tile * depth; e += side * side) {
      const int i = depth_stride == 1 ? e / depth : e % tile;
      const int p = depth_stride == 1 ? e % depth : e / tile;
      const bool inside = row + i < rows && first + p < k;
      slab[p * slab_row + i] = inside ? values[(row + i) * row_stride + (first + p) * depth_stride] : T(0);
    }
  }
};

template <class T>
__global__ void product_kernel(GemmShape s, GemmBatch batch, T alpha, const T* a, const T* b, T beta, T* c,
                               Epilogue<T> epilogue) {
  __shared__ SharedArray<T, slab_elements> a_slab;
  __shared__ SharedArray<T, slab_elements> b_slab;
  const int64_t row_tiles = (s.m + tile - 1) / tile;
  const int64_t column_tiles = (s.n + tile - 1) / tile;
  const int64_t row = blockIdx.x / column_tiles % row_tiles * tile;
  const int64_t column = blockIdx.x % column_tiles * tile;
  const int64_t outer = blockIdx.x / (row_tiles * column_tiles) / batch.inner;
  const int64_t inner = blockIdx.x / (row_tiles * column_tiles) % batch.inner;
  const bool a_across = s.a == Transpose::yes;
  const bool b_across = s.b == Transpose::yes;
  const Operand<T> left{a + outer * batch.a_outer + inner * batch.a_inner, s.m, s.k, a_across ? 1 : s.lda,
                        a_across ? s.lda : 1};
  const Operand<T> right{b + outer * batch.b_outer + inner * batch.b_inner, s.n, s.k, b_across ? s.ldb : 1,
                         b_across ? 1 : s.ldb};
  const int my_row = threadIdx.x / side;
  const int my_column = threadIdx.x % side;
  T sums[per_thread][per_thread] = {};
  for (int64_t first = 0; first < s.k; first += depth) {
    if (first > 0) __syncthreads();  // until all have used the slabs before
    left.load(row, first, a_slab.data());
    right.load(column, first, b_slab.data());
    __syncthreads();
    const T* a_values = a_slab.data() + my_row;
    const T* b_values = b_slab.data() + my_column;
    for (int p = 0; p < depth; ++p) {
      T b_row[per_thread];
#pragma unroll
      for (int j = 0; j < per_thread; ++j) b_row[j] = b_values[p * slab_row + j * side];
#pragma unroll
      for (int i = 0; i < per_thread; ++i) {
        const T a_value = a_values[p * slab_row + i * side];
#pragma unroll
        for (int j = 0; j < per_thread; ++j) sums[i][j] += a_value * b_row[j];
      }
    }
  }
  c += outer * batch.c_outer + inner * batch.c_inner;
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
#pragma unroll
    for (int j = 0; j < per_thread; ++j) {
      const int64_t y = row + my_row + i * side;
      const int64_t x = column + my_column + j * side;
      if (y >= s.m || x >= s.n) continue;
      const int64_t place = y * s.ldc + x;
      const T scaled = alpha * sums[i][j];
      finish(epilogue, place, x, beta == 0 ? scaled : scaled + beta * c[place], c);
    }
  }
}

template <class T>
void product(const Cuda& device, const GemmShape& s, const GemmBatch& batch, T alpha, const T* a, const T* b,
             T beta, T* c, const Epilogue<T>& epilogue) {
  const int64_t tiles = ((s.m + tile - 1) / tile) * ((s.n + tile - 1) / tile);
  const unsigned blocks = blocks_for(batch.outer * batch.inner * tiles, 1);
  launch<product_kernel<T>>(device, {blocks, side * side}, s, batch, alpha, a, b, beta, c, epilogue);
}

#endif

}  // namespace

template <class T>
void gemm(Cuda device, GemmShape shape, T alpha, const T* a, const T* b, T beta, T* c,
          const Epilogue<T>& epilogue) {
  if (shape.m == 0 || shape.n == 0) return;
  product(device, with_strides(shape), GemmBatch{}, alpha, a, b, beta, c, epilogue);
}

template <class T>
void gemm_batched(Cuda device, GemmShape shape, GemmBatch batch, T alpha, const T* a, const T* b, T beta,
                  T* c) {
  if (shape.m == 0 || shape.n == 0 || batch.outer == 0 || batch.inner == 0) return;
  product(device, with_strides(shape), batch, alpha, a, b, beta, c, Epilogue<T>{});
}

namespace {

template <class T>
__global__ void bias_sums(Stretch stretch, T* partial, const T* dy) {
  T* sums = stretch.begin_sums(1, partial);
  for (int64_t row = stretch.begin(); row < stretch.end(); ++row) {
    for_my_columns(stretch.columns, [=](int64_t j) { sums[j] += dy[row * stretch.columns + j]; });
  }
  stretch.end_sums(1, sums, partial);
}

}  // namespace

template <class T>
void bias_backward(Cuda device, int64_t rows, int64_t columns, const T* dy, T* dbias) {
  sum_over_rows<bias_sums<T>>(device, rows, columns, 1, &dbias, dy);
}

#define INSTANTIATE(T)                                                                      \
  template void gemm<T>(Cuda, GemmShape, T, const T*, const T*, T, T*, const Epilogue<T>&); \
  template void gemm_batched<T>(Cuda, GemmShape, GemmBatch, T, const T*, const T*, T, T*);  \
  template void bias_backward<T>(Cuda, int64_t, int64_t, const T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
