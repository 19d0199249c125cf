// One matrix product by one thread, through OpenBLAS.
#pragma once

#include <cblas.h>

#include <mutex>

#include "tensor/kernels/gemm.h"

namespace mixgrad {

/// Keeps OpenBLAS from starting threads of its own when it is called by this one: its OpenMP flavour asks
/// OpenMP, which remembers a number for each thread that calls it.
inline void use_one_blas_thread() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  openblas_set_num_threads(1);
}

/// C = alpha op(A) op(B) + beta C on the calling thread; strides must be given. Callers are tasks of a
/// parallel loop: how work is split among threads, and with it the order of every sum, is decided there and
/// never inside OpenBLAS.
template <class T>
void blas_gemm(const GemmShape& s, T alpha, const T* a, const T* b, T beta, T* c) {
  [[maybe_unused]] thread_local const bool single_threaded = (use_one_blas_thread(), true);
  if (s.m == 0 || s.n == 0) return;
  const auto transpose = [](Transpose t) { return t == Transpose::yes ? CblasTrans : CblasNoTrans; };
  const auto stride = [](int64_t given) { return static_cast<blasint>(given > 0 ? given : 1); };
  const blasint lda = stride(s.lda), ldb = stride(s.ldb), ldc = stride(s.ldc);
  const auto m = static_cast<blasint>(s.m), n = static_cast<blasint>(s.n), k = static_cast<blasint>(s.k);
  if constexpr (sizeof(T) == sizeof(float)) {
    cblas_sgemm(CblasRowMajor, transpose(s.a), transpose(s.b), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  } else {
    cblas_dgemm(CblasRowMajor, transpose(s.a), transpose(s.b), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
}

}  // namespace mixgrad
