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

/// As many T as fit into a register of so many bytes: a vector type of GCC and Clang, since loops over an
/// array do not stay in registers. Loose: the same anywhere in memory.
template <class T, int bytes = register_bytes>
struct Register {
  typedef T Vector __attribute__((vector_size(bytes)));
  typedef T Loose __attribute__((vector_size(bytes), aligned(alignof(T)), may_alias));
  static constexpr int lanes = bytes / sizeof(T);

  static Vector load(const T* from) { return *reinterpret_cast<const Loose*>(from); }
  static void store(const Vector& x, T* to) { *reinterpret_cast<Loose*>(to) = x; }
};

}  // namespace mixgrad
