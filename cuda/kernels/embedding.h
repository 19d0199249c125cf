// The kernels of tensor/kernels/embedding.h on a GPU: the same functions, all pointers to device memory.
#pragma once

#include "tensor/kernels/embedding.h"

namespace mixgrad {

/// Waits for the device.
int64_t first_invalid_id(Cuda, EmbeddingShape shape, const int32_t* ids);

template <class T>
void embedding_forward(Cuda, EmbeddingShape shape, const int32_t* ids, const T* weight, T* y);
template <class T>
void embedding_backward(Cuda, EmbeddingShape shape, const int32_t* ids, const T* dy, T* dweight);

}  // namespace mixgrad
