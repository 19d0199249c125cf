// Filling, and copying between layouts, on a GPU.
//
// A block owns 1024 consecutive elements, a thread 4 of them, 256 apart. Bytes moved: n sizeof(T) to fill,
// 2 n sizeof(Element) to copy, with neighbouring threads at neighbouring places where the last axis has
// stride 1.
#include "tensor/kernels/copy.h"

#include "cuda/kernels/axes.cuh"
#include "cuda/kernels/map.cuh"

namespace mixgrad {

template <class T>
void fill(Cuda device, int64_t n, T value, T* y) {
  map(device, n, [=] __device__(int64_t i) { y[i] = value; });
}

template <class Element>
void copy_strided(Cuda device, const StridedCopy& copy, const Element* from, Element* to) {
  Axes axes;
  for (int axis = 0; axis < copy.shape.rank(); ++axis) {
    axes.push_back(copy.shape[axis], copy.to_strides[axis], copy.from_strides[axis]);
  }
  map(device, axes.elements(),
      [=] __device__(int64_t i) { to[axes.offset(0, i)] = from[axes.offset(1, i)]; });
}

template void fill(Cuda, int64_t, float, float*);
template void fill(Cuda, int64_t, double, double*);
template void fill(Cuda, int64_t, int32_t, int32_t*);
template void fill(Cuda, int64_t, int64_t, int64_t*);
template void copy_strided(Cuda, const StridedCopy&, const uint16_t*, uint16_t*);
template void copy_strided(Cuda, const StridedCopy&, const uint32_t*, uint32_t*);
template void copy_strided(Cuda, const StridedCopy&, const uint64_t*, uint64_t*);

}  // namespace mixgrad
