#include "tensor/kernels/copy.h"

#include <algorithm>

#include "tensor/parallel.h"

namespace mixgrad {

template <class T>
void fill(Cpu, int64_t n, T value, T* y) {
  parallel_blocks(n, rows_per_block(1),
                  [&](int64_t begin, int64_t end) { std::fill(y + begin, y + end, value); });
}

template <class Element>
void copy_strided(Cpu, const StridedCopy& copy, const Element* from, Element* to) {
  const Shape outer = copy.shape.drop_last();
  const int64_t columns = copy.shape.columns();
  const int64_t to_step = copy.to_strides[outer.rank()], from_step = copy.from_strides[outer.rank()];
  parallel_blocks(outer.elements(), rows_per_block(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Element* x = from;
      Element* y = to;
      for (int64_t axis = outer.rank() - 1, rest = row; axis >= 0; rest /= outer[axis--]) {
        x += rest % outer[axis] * copy.from_strides[axis];
        y += rest % outer[axis] * copy.to_strides[axis];
      }
      if (from_step == 1 && to_step == 1) {
        std::copy(x, x + columns, y);
      } else {
        for (int64_t i = 0; i < columns; ++i) y[i * to_step] = x[i * from_step];
      }
    }
  });
}

template void fill(Cpu, int64_t, float, float*);
template void fill(Cpu, int64_t, double, double*);
template void fill(Cpu, int64_t, int32_t, int32_t*);
template void fill(Cpu, int64_t, int64_t, int64_t*);
template void copy_strided(Cpu, const StridedCopy&, const uint16_t*, uint16_t*);
template void copy_strided(Cpu, const StridedCopy&, const uint32_t*, uint32_t*);
template void copy_strided(Cpu, const StridedCopy&, const uint64_t*, uint64_t*);

}  // namespace mixgrad
