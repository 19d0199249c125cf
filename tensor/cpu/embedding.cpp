// Table look-up on the CPU.
#include "tensor/kernels/embedding.h"

#include <algorithm>

#include "tensor/parallel.h"

namespace mixgrad {

int64_t first_invalid_id(Cpu, EmbeddingShape shape, const int32_t* ids) {
  for (int64_t i = 0; i < shape.count; ++i) {
    if (ids[i] < 0 || ids[i] >= shape.vocabulary) return i;
  }
  return -1;
}

template <class T>
void embedding_forward(Cpu, EmbeddingShape shape, const int32_t* ids, const T* weight, T* y) {
  const int64_t columns = shape.columns;
  parallel_blocks(shape.count, rows_per_block(columns), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::copy_n(weight + ids[i] * columns, columns, y + i * columns);
  });
}

template <class T>
void embedding_backward(Cpu, EmbeddingShape shape, const int32_t* ids, const T* dy, T* dweight) {
  const int64_t columns = shape.columns;
  parallel_blocks(shape.vocabulary, rows_per_block(columns), [=](int64_t begin, int64_t end) {
    std::fill(dweight + begin * columns, dweight + end * columns, T(0));
  });
  // Threads share out the columns, not the rows: ids that repeat then never meet in two threads, and each
  // thread adds in the order of i, whatever their number.
  constexpr int64_t block = 64;
  parallel_blocks(columns, block, [=](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < shape.count; ++i) {
      const T* row = dy + i * columns;
      T* sum = dweight + ids[i] * columns;
      for (int64_t j = begin; j < end; ++j) sum[j] += row[j];
    }
  });
}

#define INSTANTIATE(T)                                                                   \
  template void embedding_forward<T>(Cpu, EmbeddingShape, const int32_t*, const T*, T*); \
  template void embedding_backward<T>(Cpu, EmbeddingShape, const int32_t*, const T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
