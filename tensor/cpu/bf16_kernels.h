// The innermost kernels of products in bfloat16: operands rounded to 8 bits of mantissa, sums in float.
#pragma once

#include <cstdint>

namespace mixgrad {

/// The kernels for one instruction set. Two neighbours along the sum, p and p + 1, make a pair: the unit of
/// the hardware's products. Denormal operands count as 0.
struct Bf16Kernels {
  static constexpr int64_t rows = 32, columns = 32;  // of a block
  static constexpr int64_t pair_unit = 16;           // pairs come in multiples of so many

  const char* name;
  /// Before a thread's first product of a task, and after its last.
  void (*begin)();
  void (*end)();
  /// block [rows, columns] = the sum over pairs of a [rows, pairs] b [pairs, columns]; a_line between a's
  /// rows.
  void (*multiply)(int64_t pairs, const uint32_t* a, int64_t a_line, const uint32_t* b, float* block);
};

/// AMX (TDPBF16PS), once the operating system has allowed its use. Null where this build, the CPU or the
/// system lacks it.
const Bf16Kernels* amx_kernels();
/// AVX512_BF16 (VDPBF16PS). Null where this build or the CPU lacks it.
const Bf16Kernels* avx512_bf16_kernels();

}  // namespace mixgrad
