// Matrix products on a GPU. With cuBLAS (MIXGRAD_CUBLAS) it computes the product, in float without TF32, and
// a loop over C applies the epilogue; otherwise, as in the simulator, one kernel of our own does both. Where
// bfloat16 is asked for, operands are rounded, for cuBLAS in a pass of its own, and multiplied on tensor
// cores; sums are float.
//
//   kernel                a block owns             bytes moved                              FLOPs
//   product_kernel        a 64 x 64 tile of C      2 (m n k / 64) sizeof(T), most of them   2 m n k
//                                                  from the L2 cache, and C once or twice
//   bf16_product_kernel   a 64 x 64 tile of C      the same, T being float                  2 m n k
//   bias_sums             a stretch of rows        sizeof(T) for each of dy                 1 for each of dy
//
// Shared memory: of product_kernel two slabs of 16 x 65 elements, 8 KB for float and 17 KB for double; of
// bf16_product_kernel two of 16 x 72, 5 KB. The sum of an element of C runs over k from first to last, in one
// thread or, on tensor cores, 16 terms at a time.
#include "tensor/kernels/gemm.h"

#include "cuda/device_code.h"
#include "cuda/kernels/map.cuh"
#include "cuda/kernels/rows.cuh"
#include "cuda/kernels/tile_mma.cuh"
#include "tensor/kernels/scalar.h"
#include "tensor/measure.h"
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

/// This host thread's handle for the device, set to its stream. TF32 is never used.
cublasHandle_t cublas_handle(const Cuda& device) {
  thread_local std::map<int, cublasHandle_t> handles;  // never destroyed: the driver may be gone before us
  check(cudaSetDevice(device.index) == cudaSuccess, "[cuda] cudaSetDevice on device ", device.index,
        " failed");
  const auto [entry, is_new] = handles.try_emplace(device.index, nullptr);
  if (is_new) check_cublas(cublasCreate(&entry->second));
  check_cublas(cublasSetStream(entry->second, static_cast<cudaStream_t>(device.stream)));
  return entry->second;
}

cublasOperation_t operation(Transpose transpose) {
  return transpose == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N;
}

/// A distance between rows, which cuBLAS wants to be 1 at least.
int64_t distance(int64_t rows_apart) { return std::max<int64_t>(1, rows_apart); }

template <class T>
void apply_epilogue(const Cuda& device, const GemmShape& s, T* c, const Epilogue<T>& epilogue) {
  if (!epilogue.bias && !epilogue.gelu && !epilogue.gelu_input) return;
  map(device, s.m * s.n, [=] __device__(int64_t i) {
    const int64_t place = i / s.n * s.ldc + i % s.n;
    finish(epilogue, place, i % s.n, c[place], c);
  });
}

// cuBLAS stores columns. What lies row by row is to it the transpose, and C^T = op(B)^T op(A)^T.

template <class T>
void product(const Cuda& device, const GemmShape& s, const GemmBatch& batch, T alpha, const T* a, const T* b,
             T beta, T* c, const Epilogue<T>& epilogue) {
  if (measuring()) return;
  const cublasHandle_t handle = cublas_handle(device);
  const auto gemm_of_type = [] {
    if constexpr (sizeof(T) == 4)
      return &cublasSgemmStridedBatched_64;
    else
      return &cublasDgemmStridedBatched_64;
  }();
  for (int64_t outer = 0; outer < batch.outer; ++outer) {
    check_cublas(gemm_of_type(handle, operation(s.b), operation(s.a), s.n, s.m, s.k, &alpha,
                              b + outer * batch.b_outer, distance(s.ldb), batch.b_inner,
                              a + outer * batch.a_outer, distance(s.lda), batch.a_inner, &beta,
                              c + outer * batch.c_outer, distance(s.ldc), batch.c_inner, batch.inner));
  }
  apply_epilogue(device, s, c, epilogue);
}

/// to [rows, to_apart] = bfloat16 of from [rows, from_apart], the first `columns` of each row.
void round_rows(const Cuda& device, int64_t rows, int64_t columns, int64_t from_apart, const float* from,
                int64_t to_apart, Bfloat16* to) {
  const bool gaps = columns != from_apart || columns != to_apart;
  map(device, rows * columns, [=] __device__(int64_t i) {
    const int64_t row = gaps ? i / columns : 0;
    const int64_t column = i - row * columns;
    to[row * to_apart + column] = __float2bfloat16(from[row * from_apart + column]);
  });
}

/// An operand rounded to bfloat16, in rows that begin at multiples of 16 bytes.
class RoundedOperand {
 public:
  RoundedOperand(const Cuda& device, int64_t rows, int64_t columns, int64_t rows_apart, const float* values)
      : stride_((columns + 7) / 8 * 8), rounded_(rows * stride_, device) {
    round_rows(device, rows, columns, rows_apart, values, stride_, rounded_.data());
  }

  const Bfloat16* data() { return rounded_.data(); }
  int64_t stride() const { return stride_; }

 private:
  int64_t stride_;
  Scratch<Bfloat16> rounded_;
};

void bf16_product(const Cuda& device, const GemmShape& s, float alpha, const float* a, const float* b,
                  float beta, float* c, const Epilogue<float>& epilogue) {
  const bool a_across = s.a == Transpose::yes;
  const bool b_across = s.b == Transpose::yes;
  RoundedOperand left(device, a_across ? s.k : s.m, a_across ? s.m : s.k, s.lda, a);
  RoundedOperand right(device, b_across ? s.n : s.k, b_across ? s.k : s.n, s.ldb, b);
  if (measuring()) return;
  check_cublas(cublasGemmEx_64(cublas_handle(device), operation(s.b), operation(s.a), s.n, s.m, s.k, &alpha,
                               right.data(), CUDA_R_16BF, distance(right.stride()), left.data(), CUDA_R_16BF,
                               distance(left.stride()), &beta, c, CUDA_R_32F, distance(s.ldc),
                               CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  apply_epilogue(device, s, c, epilogue);
}

#else

constexpr int tile = 64;                 // rows and columns of C that a block owns
constexpr int depth = 16;                // of k at a time
constexpr int side = 16;                 // side x side threads; neighbours have neighbouring columns
constexpr int per_thread = tile / side;  // rows and columns of a thread, `side` apart

/// The values of an operand that are in shared memory at a time, element (i, p) at slab[p row + i].
template <class Element>
struct Slab {
  // For plain sums an odd distance: writes down a column go to different banks.
  static constexpr int row = std::is_same_v<Element, Bfloat16> ? tile_stride(tile) : tile + 1;
  static constexpr int elements = depth * row;
};

/// A matrix [rows, k], element (i, p) at i row_stride + p depth_stride.
template <class T>
struct Operand {
  const T* values;
  int64_t rows, k;
  int64_t row_stride, depth_stride;

  /// Elements (row + i, first + p) for the slab, rounded if it is of bfloat16; zero outside the matrix.
  /// Neighbouring threads read neighbouring elements, whichever of the strides is 1.
  template <class Element>
  __device__ void load(int64_t row, int64_t first, Element* slab) const {
    for (int e = threadIdx.x; e < tile * depth; e += side * side) {
      const int i = depth_stride == 1 ? e / depth : e % tile;
      const int p = depth_stride == 1 ? e % depth : e / tile;
      const bool inside = row + i < rows && first + p < k;
      const T value = inside ? values[(row + i) * row_stride + (first + p) * depth_stride] : T(0);
      if constexpr (std::is_same_v<Element, T>)
        slab[p * Slab<Element>::row + i] = value;
      else
        slab[p * Slab<Element>::row + i] = __float2bfloat16(value);
    }
  }
};

/// The tile of C that a block owns, and the operands of its product.
template <class T>
struct Task {
  int64_t row, column;
  Operand<T> left, right;
  T* c;

  __device__ Task(const GemmShape& s, const GemmBatch& batch, const T* a, const T* b, T* all_c) {
    const int64_t row_tiles = (s.m + tile - 1) / tile;
    const int64_t column_tiles = (s.n + tile - 1) / tile;
    row = blockIdx.x / column_tiles % row_tiles * tile;
    column = blockIdx.x % column_tiles * tile;
    const int64_t outer = blockIdx.x / (row_tiles * column_tiles) / batch.inner;
    const int64_t inner = blockIdx.x / (row_tiles * column_tiles) % batch.inner;
    const bool a_across = s.a == Transpose::yes;
    const bool b_across = s.b == Transpose::yes;
    left = {a + outer * batch.a_outer + inner * batch.a_inner, s.m, s.k, a_across ? 1 : s.lda,
            a_across ? s.lda : 1};
    right = {b + outer * batch.b_outer + inner * batch.b_inner, s.n, s.k, b_across ? s.ldb : 1,
             b_across ? 1 : s.ldb};
    c = all_c + outer * batch.c_outer + inner * batch.c_inner;
  }

  /// Writes an element of C, from the sum of its products.
  __device__ void write(const GemmShape& s, int64_t y, int64_t x, T sum, T alpha, T beta,
                        const Epilogue<T>& epilogue) const {
    if (y >= s.m || x >= s.n) return;
    const int64_t place = y * s.ldc + x;
    const T scaled = alpha * sum;
    finish(epilogue, place, x, beta == 0 ? scaled : scaled + beta * c[place], c);
  }
};

template <class T>
__global__ void product_kernel(GemmShape s, GemmBatch batch, T alpha, const T* a, const T* b, T beta, T* c,
                               Epilogue<T> epilogue) {
  __shared__ SharedArray<T, Slab<T>::elements> a_slab;
  __shared__ SharedArray<T, Slab<T>::elements> b_slab;
  const Task<T> task(s, batch, a, b, c);
  const int my_row = threadIdx.x / side;
  const int my_column = threadIdx.x % side;
  T sums[per_thread][per_thread] = {};
  for (int64_t first = 0; first < s.k; first += depth) {
    if (first > 0) __syncthreads();  // until all have used the slabs before
    task.left.load(task.row, first, a_slab.data());
    task.right.load(task.column, first, b_slab.data());
    __syncthreads();
    const T* a_values = a_slab.data() + my_row;
    const T* b_values = b_slab.data() + my_column;
    for (int p = 0; p < depth; ++p) {
      T b_row[per_thread];
#pragma unroll
      for (int j = 0; j < per_thread; ++j) b_row[j] = b_values[p * Slab<T>::row + j * side];
#pragma unroll
      for (int i = 0; i < per_thread; ++i) {
        const T a_value = a_values[p * Slab<T>::row + i * side];
#pragma unroll
        for (int j = 0; j < per_thread; ++j) sums[i][j] += a_value * b_row[j];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
#pragma unroll
    for (int j = 0; j < per_thread; ++j) {
      task.write(s, task.row + my_row + i * side, task.column + my_column + j * side, sums[i][j], alpha, beta,
                 epilogue);
    }
  }
}

unsigned blocks_of(const GemmShape& s, const GemmBatch& batch) {
  const int64_t tiles = ((s.m + tile - 1) / tile) * ((s.n + tile - 1) / tile);
  return blocks_for(batch.outer * batch.inner * tiles, 1);
}

template <class T>
void product(const Cuda& device, const GemmShape& s, const GemmBatch& batch, T alpha, const T* a, const T* b,
             T beta, T* c, const Epilogue<T>& epilogue) {
  launch<product_kernel<T>>(device, {blocks_of(s, batch), side * side}, s, batch, alpha, a, b, beta, c,
                            epilogue);
}

/// Each of the eight warps has 16 rows and 32 columns of the tile.
__global__ void bf16_product_kernel(GemmShape s, float alpha, const float* a, const float* b, float beta,
                                    float* c, Epilogue<float> epilogue) {
  using Rounded = Slab<Bfloat16>;
  __shared__ SharedArray<Bfloat16, Rounded::elements> a_slab;
  __shared__ SharedArray<Bfloat16, Rounded::elements> b_slab;
  const Task<float> task(s, GemmBatch{}, a, b, c);
  const int warp = threadIdx.x / 32;
  const int my_row = warp / 2 * tile_side;
  const int my_column = warp % 2 * 2 * tile_side;
  SumTile sums[2];
  for (int64_t first = 0; first < s.k; first += depth) {
    if (first > 0) __syncthreads();  // until all have used the slabs before
    task.left.load(task.row, first, a_slab.data());
    task.right.load(task.column, first, b_slab.data());
    __syncthreads();
    const LeftTile left = transposed_left_tile(a_slab.data() + my_row, Rounded::row);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      sums[j].add_product(left, right_tile(b_slab.data() + my_column + j * tile_side, Rounded::row));
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      task.write(s, task.row + my_row + SumTile::row(i),
                 task.column + my_column + j * tile_side + SumTile::column(i), sums[j].values[i], alpha, beta,
                 epilogue);
    }
  }
}

void bf16_product(const Cuda& device, const GemmShape& s, float alpha, const float* a, const float* b,
                  float beta, float* c, const Epilogue<float>& epilogue) {
  launch<bf16_product_kernel>(device, {blocks_of(s, {}), side * side}, s, alpha, a, b, beta, c, epilogue);
}

#endif

}  // namespace

template <class T>
void gemm(Cuda device, GemmShape shape, T alpha, const T* a, const T* b, T beta, T* c,
          const Epilogue<T>& epilogue) {
  if (shape.m == 0 || shape.n == 0) return;
  const GemmShape s = with_strides(shape);
  if constexpr (std::is_same_v<T, float>) {
    if (matrix_precision() == MatrixPrecision::bfloat16) {
      return bf16_product(device, s, alpha, a, b, beta, c, epilogue);
    }
  }
  product(device, s, GemmBatch{}, alpha, a, b, beta, c, epilogue);
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
