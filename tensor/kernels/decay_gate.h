// The forgetting gate of gated recurrences: a log decay from a projection of the token.
#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace mixgrad {

/// N tokens, H heads, each with `channels` gates of its own: one for a gate per head, dk for one per key
/// channel.
struct DecayGateShape {
  int64_t tokens, heads, channels;
};

/// g = -exp(A_log[h]) softplus(a + dt_bias[h, c]) for a, g [N, H, channels], A_log [H], dt_bias [H,
/// channels]. Gu, Dao: Mamba, 2023, with its step size softplus(a + dt_bias) and its rate -exp(A_log).
template <class T>
void decay_gate_forward(Cpu, DecayGateShape shape, const T* a, const T* A_log, const T* dt_bias, T* g);
/// da = -dg exp(A_log) sigmoid(a + dt_bias), ddt_bias = sum over tokens of da, dA_log = sum over tokens and
/// channels of dg g. A null gradient isn't wanted. Of g the recurrence that reads it keeps the same tensor,
/// so that it costs no memory, and a second softplus would cost more time than all the rest.
template <class T>
void decay_gate_backward(Cpu, DecayGateShape shape, const T* a, const T* A_log, const T* dt_bias, const T* g,
                         const T* dg, T* da, T* dA_log, T* ddt_bias);

// On a GPU: cuda/kernels/decay_gate.cu. All pointers are to device memory.
template <class T>
void decay_gate_forward(Cuda, DecayGateShape shape, const T* a, const T* A_log, const T* dt_bias, T* g);
template <class T>
void decay_gate_backward(Cuda, DecayGateShape shape, const T* a, const T* A_log, const T* dt_bias, const T* g,
                         const T* dg, T* da, T* dA_log, T* ddt_bias);

}  // namespace mixgrad
