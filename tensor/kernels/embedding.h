// Table look-up.
#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace mixgrad {

/// ids [count] into a table [vocabulary, columns].
struct EmbeddingShape {
  int64_t count, vocabulary, columns;
};

/// Index of the first id that isn't in [0, vocabulary); -1: none.
int64_t first_invalid_id(Cpu, EmbeddingShape shape, const int32_t* ids);

/// y[i, :] = weight[ids[i], :]. Every id must be valid.
template <class T>
void embedding_forward(Cpu, EmbeddingShape shape, const int32_t* ids, const T* weight, T* y);
/// dweight[v, :] = sum of dy[i, :] over all i with ids[i] = v, in the order of i; 0 where there is none.
template <class T>
void embedding_backward(Cpu, EmbeddingShape shape, const int32_t* ids, const T* dy, T* dweight);

// On a GPU: cuda/kernels/embedding.cu. All pointers are to device memory.
/// Waits for the device.
int64_t first_invalid_id(Cuda, EmbeddingShape shape, const int32_t* ids);
template <class T>
void embedding_forward(Cuda, EmbeddingShape shape, const int32_t* ids, const T* weight, T* y);
template <class T>
void embedding_backward(Cuda, EmbeddingShape shape, const int32_t* ids, const T* dy, T* dweight);

}  // namespace mixgrad
