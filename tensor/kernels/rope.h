// Rotary position embedding.
#pragma once

#include <cstdint>

#include "tensor/device.h"
#include "tensor/kernels/heads.h"

namespace mixgrad {

/// x and y are [batch, length, heads, head_size], positions [length]; head_size is even.
struct RopeShape {
  int64_t batch, length, heads, head_size;
  double theta;
};

/// For j < head_size / 2 the pair (x_j, x_{j + head_size/2}) is rotated by positions[t] theta^(-2j /
/// head_size). The angle is computed in double whatever T is: in float, that of position 10^6 has an error of
/// 0.03. Su et al.: RoFormer, 2021; the pairing is that of GPT-NeoX.
template <class T>
void rope_forward(Cpu, RopeShape shape, const int64_t* positions, Heads<const T> x, Heads<T> y);
/// dx is dy, rotated back.
template <class T>
void rope_backward(Cpu, RopeShape shape, const int64_t* positions, Heads<const T> dy, Heads<T> dx);

// On a GPU: cuda/kernels/rope.cu. All pointers are to device memory.
template <class T>
void rope_forward(Cuda, RopeShape shape, const int64_t* positions, Heads<const T> x, Heads<T> y);
template <class T>
void rope_backward(Cuda, RopeShape shape, const int64_t* positions, Heads<const T> dy, Heads<T> dx);

}  // namespace mixgrad
