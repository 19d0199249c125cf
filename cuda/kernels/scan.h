// The kernels of tensor/kernels/scan.h on a GPU: the same functions, all pointers to device memory.
#pragma once

#include "tensor/kernels/scan.h"

namespace mixgrad {

template <class T>
void selective_scan_forward(Cuda, ScanShape shape, const ScanInputs<T>& in, T* y, T* final_state,
                            T* checkpoints);
template <class T>
void selective_scan_backward(Cuda, ScanShape shape, const ScanInputs<T>& in, const T* checkpoints,
                             const T* dy, const T* dfinal_state, const ScanGradients<T>& out);

}  // namespace mixgrad
