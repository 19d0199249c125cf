// Arrays of several axes in device code.
#pragma once

#include "cuda/device_code.h"
#include "tensor/shape.h"

namespace mixgrad {

/// Some axes of an array, as device code can read them: from an index along them to an offset.
struct Axes {
  int rank = 0;
  int64_t sizes[Shape::max_rank];
  int64_t strides[2][Shape::max_rank];  // of up to two arrays

  void push_back(int64_t size, int64_t stride, int64_t other_stride = 0) {
    sizes[rank] = size;
    strides[0][rank] = stride;
    strides[1][rank] = other_stride;
    ++rank;
  }
  int64_t elements() const {
    int64_t product = 1;
    for (int axis = 0; axis < rank; ++axis) product *= sizes[axis];
    return product;
  }
  __device__ int64_t offset(int array, int64_t index) const {
    int64_t sum = 0;
    for (int axis = rank - 1; axis >= 0; --axis) {
      sum += index % sizes[axis] * strides[array][axis];
      index /= sizes[axis];
    }
    return sum;
  }
};

}  // namespace mixgrad
