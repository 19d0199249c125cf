// The selective scan: a recurrence of which every entry of the state decays by itself.
//
// u, delta, y [B, T, D]; B, C [B, T, G, N], each for D / G channels; A [D, N]; D [D]; states [B, D, N];
// documents [B, T], not 0 where a document begins, whose states start from 0; all contiguous. A, B, C and D
// are the names of the operands in the paper; as sizes B and D are what they are everywhere. A null D or
// state stands for 0, null documents for one, a null gradient of an output too; a null final state or wanted
// gradient isn't wanted.
#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace mixgrad {

/// By what a state is multiplied before it is written to.
enum class ScanDecay {
  exponential,  // exp(delta_t[d] A[d, n])
  written       // 1 - delta_t[d] B_t[n]^2: what is written along B replaces what was there. A isn't read
};

/// B sequences of T tokens and D channels, with N states a channel.
struct ScanShape {
  int64_t batch, length, channels, states;
  int64_t groups = 1;  // G, of channels; divides D
  ScanDecay decay = ScanDecay::exponential;

  static constexpr int64_t chunk = 64;  // tokens between two states that are kept for backward
  int64_t chunks() const { return (length + chunk - 1) / chunk; }
};

template <class T>
struct ScanInputs {
  const T *u, *delta, *A, *B, *C, *D, *initial_state;
  const int32_t* documents = nullptr;
};

template <class T>
struct ScanGradients {
  T *du, *ddelta, *dA, *dB, *dC, *dD, *dinitial_state;
};

/// h_t[d, n] = decay h_{t-1}[d, n] + delta_t[d] u_t[d] B_t[n], with B and C of the channel's group
/// y_t[d] = sum over n of C_t[n] h_t[d, n] + D[d] u_t[d]
/// checkpoints [B, chunks, N, D], unless null, get the state before each chunk. No other state is written: T
/// D N numbers are never stored. Gu, Dao: Mamba, 2023; the other decay: Liu et al.: Longhorn, 2024.
template <class T>
void selective_scan_forward(Cpu, ScanShape shape, const ScanInputs<T>& in, T* y, T* final_state,
                            T* checkpoints);
/// From the last token to the first, G_t = C_t dy_t + decay_{t+1} G_{t+1} being the gradient of h_t, starting
/// from dfinal_state:
///   du_t = sum over n of delta_t G_t B_t + D dy_t
///   ddelta_t = sum over n of G_t (B_t u_t + ddecay_t / ddelta_t h_{t-1})
///   dB_t = sum over d of G_t (delta_t u_t + ddecay_t / dB_t h_{t-1})
///   dC_t = sum over d of dy_t h_t
///   dA = sum over b and t of G_t ddecay_t / dA h_{t-1}
///   dD = sum over b and t of dy_t u_t
/// The states of a chunk are computed again from its checkpoint. No gradient but dD and dinitial_state may be
/// null; dA isn't written where A isn't read.
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
