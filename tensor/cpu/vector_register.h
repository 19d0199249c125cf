// Vector registers, in the compiler's vector extensions.
#pragma once

namespace mixgrad {
namespace {

/// A vector register of so many bytes; Loose: the same anywhere in memory.
template <int bytes>
struct Register {
  typedef float Vector __attribute__((vector_size(bytes)));
  typedef float Loose __attribute__((vector_size(bytes), aligned(4), may_alias));
  static constexpr int lanes = bytes / 4;
};

}  // namespace
}  // namespace mixgrad
