// The kernels of tensor/kernels/decay_gate.h on a GPU: the same functions, all pointers to device memory.
#pragma once

#include "tensor/kernels/decay_gate.h"

namespace mixgrad {

template <class T>
void decay_gate_forward(Cuda, DecayGateShape shape, const T* a, const T* A_log, const T* dt_bias, T* g);
template <class T>
void decay_gate_backward(Cuda, DecayGateShape shape, const T* a, const T* A_log, const T* dt_bias, const T* g,
                         const T* dg, T* da, T* dA_log, T* ddt_bias);

}  // namespace mixgrad
