#include "train/bench/openblas.h"

#include <cblas.h>

namespace mixgrad {

OpenblasThreads::OpenblasThreads(int threads) { openblas_set_num_threads(threads); }
OpenblasThreads::~OpenblasThreads() { openblas_set_num_threads(1); }

void openblas_gemm(const GemmShape& shape, const float* a, const float* b, float* c) {
  const auto transpose = [](Transpose t) { return t == Transpose::yes ? CblasTrans : CblasNoTrans; };
  const auto m = static_cast<blasint>(shape.m), n = static_cast<blasint>(shape.n),
             k = static_cast<blasint>(shape.k);
  cblas_sgemm(CblasRowMajor, transpose(shape.a), transpose(shape.b), m, n, k, 1, a,
              shape.a == Transpose::yes ? m : k, b, shape.b == Transpose::yes ? k : n, 0, c, n);
}

}  // namespace mixgrad
