// The vector registers of the instruction set that a file is compiled for, for kernels that keep sums in
// them.
#pragma once

#include <cstdint>

namespace mixgrad {

#if defined(__AVX512F__)
constexpr int register_bytes = 64;
constexpr int register_count = 32;
#elif defined(__AVX__)
constexpr int register_bytes = 32;
constexpr int register_count = 16;
#else
constexpr int register_bytes = 16;
constexpr int register_count = 16;
#endif

/// As many T as fit into a register: a vector type of GCC and Clang, since loops over an array do not stay in
/// registers. Loose: the same anywhere in memory.
template <class T>
struct Register {
  typedef T Vector __attribute__((vector_size(register_bytes)));
  typedef T Loose __attribute__((vector_size(register_bytes), aligned(alignof(T)), may_alias));
  static constexpr int64_t lanes = register_bytes / static_cast<int64_t>(sizeof(T));
};

}  // namespace mixgrad
