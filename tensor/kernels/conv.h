// Short causal convolution along the sequence, each channel by itself.
//
// x, y and their gradients are contiguous [B, T, D], weight [D, W], bias [D], states [B, W - 1, D]: the W - 1
// rows of x before the first token, the oldest first. A null bias or initial state stands for 0; a null final
// state or gradient isn't wanted. documents [B, T] is not 0 where a document begins, whose tokens see zeros
// before it; null: nowhere.
#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace mixgrad {

/// B sequences of T tokens and D channels; each output sees the `taps` newest tokens up to its own, W.
struct ConvShape {
  int64_t batch, length, channels, taps;
  bool silu;  // whether silu is applied to the sums
};

/// y[t, c] = f(bias[c] + sum over i < W of weight[c, i] x[t - (W - 1) + i, c]), f silu or nothing, x before
/// token 0 from the initial state. final_state = the last W - 1 rows of the initial state and x, one after
/// the other, but 0 for those before the last document.
template <class T>
void causal_conv1d_forward(Cpu, ConvShape shape, const T* x, const T* weight, const T* bias,
                           const T* initial_state, T* y, T* final_state, const int32_t* documents = nullptr);
/// With e = dy f'(the sums), which are computed again: dx[s] = sum over i of weight[i] e[s + W - 1 - i],
/// dweight[i] = sum over t of e[t] x[t - (W - 1) + i], dbias = sum of e. A row of the initial state has the
/// dx of its place before token 0, and dfinal_state is added to the rows that it came from. A null dy stands
/// for 0.
template <class T>
void causal_conv1d_backward(Cpu, ConvShape shape, const T* x, const T* weight, const T* bias,
                            const T* initial_state, const T* dy, const T* dfinal_state, T* dx, T* dweight,
                            T* dbias, T* dinitial_state, const int32_t* documents = nullptr);

// On a GPU: cuda/kernels/conv.cu. All pointers are to device memory.
template <class T>
void causal_conv1d_forward(Cuda, ConvShape shape, const T* x, const T* weight, const T* bias,
                           const T* initial_state, T* y, T* final_state, const int32_t* documents = nullptr);
template <class T>
void causal_conv1d_backward(Cuda, ConvShape shape, const T* x, const T* weight, const T* bias,
                            const T* initial_state, const T* dy, const T* dfinal_state, T* dx, T* dweight,
                            T* dbias, T* dinitial_state, const int32_t* documents = nullptr);

}  // namespace mixgrad
