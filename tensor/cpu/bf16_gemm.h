// Products of float matrices whose operands are rounded to bfloat16 on the way.
#pragma once

#include "tensor/cpu/bf16_kernels.h"
#include "tensor/kernels/gemm.h"

namespace mixgrad {

/// The kernels that bf16_gemm uses: AMX, else AVX512_BF16, else null.
const Bf16Kernels* bf16_kernels();

/// C = alpha bf16(op(A)) bf16(op(B)) + beta C by all threads, summed up in float, with the epilogue. Strides
/// must be given. Rounds to nearest, ties to even. The order of every sum depends on the shape alone.
void bf16_gemm(const Bf16Kernels& kernels, const GemmShape& shape, float alpha, const float* a,
               const float* b, float beta, float* c, const Epilogue<float>& epilogue);

}  // namespace mixgrad
