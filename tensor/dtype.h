// The element types of a tensor.
#pragma once

#include <cstdint>
#include <ostream>

namespace mixgrad {

enum class DType { float32, float64, bfloat16, int32, int64 };

constexpr int64_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return 4;
    case DType::float64:
      return 8;
    case DType::bfloat16:
      return 2;
    case DType::int32:
      return 4;
    case DType::int64:
      return 8;
  }
  return 0;
}

constexpr const char* name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::bfloat16:
      return "bfloat16";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
  }
  return "?";
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::bfloat16;
}

inline std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name(dtype); }

/// dtype_of<float> is DType::float32, and so on, for the types that C++ itself has.
template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "no dtype for this type");
  return DType::float32;
}();
template <>
inline constexpr DType dtype_of<float> = DType::float32;
template <>
inline constexpr DType dtype_of<double> = DType::float64;
template <>
inline constexpr DType dtype_of<int32_t> = DType::int32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::int64;

}  // namespace mixgrad
