// Products of so few rows that packing the other operand would take longer than the product: decoding's.
#pragma once

#include "tensor/kernels/gemm.h"

namespace mixgrad {

/// Whether these functions can compute a product, and faster than the others here. Strides must be given.
bool has_few_rows(const GemmShape& shape);

/// C = alpha op(A) op(B) + beta C by the calling thread alone.
void few_rows_tile_gemm(const GemmShape& shape, float alpha, const float* a, const float* b, float beta,
                        float* c);

/// The same by all threads, with the epilogue. The order of every sum depends on the shape alone.
void few_rows_gemm(const GemmShape& shape, float alpha, const float* a, const float* b, float beta, float* c,
                   const Epilogue<float>& epilogue);

}  // namespace mixgrad
