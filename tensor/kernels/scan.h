// The selective scan: a recurrence of which every entry of the state decays by itself.
//
// u, delta, y [B, T, D]; B, C [B, T, N]; A [D, N]; D [D]; states [B, D, N]; all contiguous. A, B, C and D are
// the names of the operands in the paper; as sizes B and D are what they are everywhere. A null D or state
// stands for 0, a null gradient of an output too; a null final state or wanted gradient isn't wanted.
#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace mixgrad {

/// B sequences of T tokens and D channels, with N states a channel.
struct ScanShape {
  int64_t batch, length, channels, states;

  static constexpr int64_t chunk = 64;  // tokens between two states that are kept for backward
  int64_t chunks() const { return (length + chunk - 1) / chunk; }
};

template <class T>
struct ScanInputs {
  const T *u, *delta, *A, *B, *C, *D, *initial_state;
};

template <class T>
struct ScanGradients {
  T *du, *ddelta, *dA, *dB, *dC, *dD, *dinitial_state;
};

/// h_t[d, n] = exp(delta_t[d] A[d, n]) h_{t-1}[d, n] + delta_t[d] u_t[d] B_t[n]
/// y_t[d] = sum over n of C_t[n] h_t[d, n] + D[d] u_t[d]
/// checkpoints [B, chunks, N, D], unless null, get the state before each chunk. No other state is written: T
/// D N numbers are never stored. Gu, Dao: Mamba, 2023.
template <class T>
void selective_scan_forward(Cpu, ScanShape shape, const ScanInputs<T>& in, T* y, T* final_state,
                            T* checkpoints);
/// From the last token to the first, G_t = C_t dy_t + exp(delta_{t+1} A) G_{t+1} being the gradient of h_t,
/// starting from dfinal_state, and P_t = G_t exp(delta_t A) h_{t-1}: du_t = delta_t sum over n of G_t B_t + D
/// dy_t     ddelta_t = sum over n of (A P_t + G_t B_t u_t) dB_t = sum over d of G_t delta_t u_t dC_t = sum
/// over d of dy_t h_t dA = sum over b and t of delta_t P_t              dD = sum over b and t of dy_t u_t The
/// states of a chunk are computed again from its checkpoint. du, ddelta, dA, dB and dC must not be null.
template <class T>
void selective_scan_backward(Cpu, ScanShape shape, const ScanInputs<T>& in, const T* checkpoints, const T* dy,
                             const T* dfinal_state, const ScanGradients<T>& out);

// On a GPU: cuda/kernels/scan.cu. All pointers are to device memory.
template <class T>
void selective_scan_forward(Cuda, ScanShape shape, const ScanInputs<T>& in, T* y, T* final_state,
                            T* checkpoints);
template <class T>
void selective_scan_backward(Cuda, ScanShape shape, const ScanInputs<T>& in, const T* checkpoints,
                             const T* dy, const T* dfinal_state, const ScanGradients<T>& out);

}  // namespace mixgrad
