// Layer and RMS normalisation along the last axis.
//
// x, y and their gradients are contiguous [rows, columns], weight and bias [columns], mean and
// inverse_deviation [rows]. A null weight stands for 1, a null bias for 0; a null gradient isn't wanted.
#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace mixgrad {

/// y = (x - mean) / sqrt(mean of (x - mean)^2 + eps) weight + bias; inverse_deviation is 1 / that root.
/// The mean comes first and the squares are of what remains: E[x^2] - E[x]^2 would cancel. In a constant row
/// x - mean is exactly 0. Ba, Kiros, Hinton: Layer normalization, 2016.
template <class T>
void layer_norm_forward(Cpu, int64_t rows, int64_t columns, double eps, const T* x, const T* weight,
                        const T* bias, T* y, T* mean, T* inverse_deviation);
/// With n = (x - mean) inverse_deviation and g = dy weight:
/// dx = (g - mean of g - n mean of g n) inverse_deviation, dweight = sum over rows of dy n, dbias = that of
/// dy.
template <class T>
void layer_norm_backward(Cpu, int64_t rows, int64_t columns, const T* x, const T* weight, const T* mean,
                         const T* inverse_deviation, const T* dy, T* dx, T* dweight, T* dbias);

/// y = x / sqrt(mean of x^2 + eps) weight; inverse_deviation is 1 / that root. float squares are added up in
/// double, so that rows of 1e18 do not overflow. Zhang, Sennrich: Root mean square layer normalization, 2019.
template <class T>
void rms_norm_forward(Cpu, int64_t rows, int64_t columns, double eps, const T* x, const T* weight, T* y,
                      T* inverse_deviation);
/// With n = x inverse_deviation and g = dy weight:
/// dx = (g - n mean of g n) inverse_deviation, dweight = sum over rows of dy n.
template <class T>
void rms_norm_backward(Cpu, int64_t rows, int64_t columns, const T* x, const T* weight,
                       const T* inverse_deviation, const T* dy, T* dx, T* dweight);

}  // namespace mixgrad
