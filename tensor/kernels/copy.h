// Filling, and copying between layouts.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/device.h"
#include "tensor/shape.h"

namespace mixgrad {

/// y = value, n times. T is a type of tensors' elements, but for bfloat16.
template <class T>
void fill(Cpu, int64_t n, T value, T* y);

/// Two arrays of one shape, each with its strides in elements.
struct StridedCopy {
  Shape shape;
  std::array<int64_t, Shape::max_rank> to_strides{};
  std::array<int64_t, Shape::max_rank> from_strides{};
};
/// Element is an unsigned integer of 2, 4 or 8 bytes. The places of `to` must be distinct.
template <class Element>
void copy_strided(Cpu, const StridedCopy& copy, const Element* from, Element* to);

// On a GPU: cuda/kernels/copy.cu. All pointers are to device memory.
template <class T>
void fill(Cuda, int64_t n, T value, T* y);
template <class Element>
void copy_strided(Cuda, const StridedCopy& copy, const Element* from, Element* to);

}  // namespace mixgrad
