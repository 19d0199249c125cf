// Matrix products.
#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace mixgrad {

enum class Transpose : bool { no, yes };

/// C [m, n] = alpha op(A) op(B) + beta C, row-major; op(A) is [m, k], op(B) [k, n].
/// lda, ldb, ldc: distance between the rows of A, B and C as they are stored. beta = 0 ignores what C held.
struct GemmShape {
  int64_t m, n, k;
  Transpose a = Transpose::no;
  Transpose b = Transpose::no;
  int64_t lda = 0, ldb = 0, ldc = 0;  // 0: the rows follow each other without a gap
};

/// Many products of one shape: outer x inner of them (batch x head, say), with a stride for each.
struct GemmBatch {
  int64_t outer = 1, inner = 1;
  int64_t a_outer = 0, a_inner = 0;
  int64_t b_outer = 0, b_inner = 0;
  int64_t c_outer = 0, c_inner = 0;
};

/// What happens to C after the product, in this order, while its elements are in the cache. Null: nothing.
/// The matrices are laid out as C is.
template <class T>
struct Epilogue {
  const T* bias = nullptr;        // [n]: C += bias in each row
  T* gelu = nullptr;              // gelu = GELU(C), by its tanh approximation; C stays as it is
  const T* gelu_input = nullptr;  // C *= GELU'(gelu_input): from the gradient of GELU's result to its input's
};

/// How gemm() computes products of floats: as they are, or with operands rounded to bfloat16 (8 bits of
/// mantissa) and sums in float. Products of double are not concerned; on a CPU, those of very few rows or
/// columns and the tiles inside of other kernels aren't either; on a GPU, attention's tiles are.
enum class MatrixPrecision { float32, bfloat16 };
MatrixPrecision matrix_precision();
/// Sets it for the whole process; not while products are computed. Throws UsageError where the device, this
/// CPU, has no instructions for bfloat16; every GPU that there are kernels for has them.
void set_matrix_precision(MatrixPrecision precision, Device device = {});

template <class T>
void gemm(Cpu, GemmShape shape, T alpha, const T* a, const T* b, T beta, T* c,
          const Epilogue<T>& epilogue = {});
template <class T>
void gemm_batched(Cpu, GemmShape shape, GemmBatch batch, T alpha, const T* a, const T* b, T beta, T* c);

/// dbias = sum over rows of dy [rows, columns].
template <class T>
void bias_backward(Cpu, int64_t rows, int64_t columns, const T* dy, T* dbias);

// On a GPU: cuda/kernels/gemm.cu. All pointers are to device memory.
template <class T>
void gemm(Cuda, GemmShape shape, T alpha, const T* a, const T* b, T beta, T* c,
          const Epilogue<T>& epilogue = {});
template <class T>
void gemm_batched(Cuda, GemmShape shape, GemmBatch batch, T alpha, const T* a, const T* b, T beta, T* c);
template <class T>
void bias_backward(Cuda, int64_t rows, int64_t columns, const T* dy, T* dbias);

}  // namespace mixgrad
