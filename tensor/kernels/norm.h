// Normalisation along the last axis: layer norm, RMS norm alone and with a gate, division by the length.
//
// x, gate, y and their gradients are contiguous [rows, columns], weight and bias [columns], statistics
// [rows]. A null weight stands for 1, a null bias for 0; a null gradient isn't wanted.
#pragma once

#include <cstdint>

#include "tensor/device.h"
#include "tensor/kernels/scalar.h"

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

/// Whether a gate multiplies what comes out of the norm or what goes in.
enum class GateOrder { norm_first, gate_first };

/// RMS norm and a gate in one pass over the rows, with f = F::value, F a function of scalar.h:
/// norm_first: y = x inverse_deviation weight f(gate), inverse_deviation = 1 / sqrt(mean of x^2 + eps);
/// gate_first: y = z inverse_deviation weight, z = x f(gate), inverse_deviation = 1 / sqrt(mean of z^2 +
/// eps). Norm first: Sun et al.: Retentive network, 2023; gate first: Dao, Gu: Transformers are SSMs, 2024.
template <class F, class T>
void gated_rms_norm_forward(Cpu, int64_t rows, int64_t columns, GateOrder order, double eps, const T* x,
                            const T* gate, const T* weight, T* y, T* inverse_deviation);
/// As rms_norm_backward, with n = x inverse_deviation and g = dy weight f(gate) where the norm is first:
/// dgate = dy n weight F::slope(gate), dweight = sum over rows of dy n f(gate);
/// with n = z inverse_deviation, g = dy weight, and dz for dx where the gate is first:
/// dx = dz f(gate), dgate = dz x F::slope(gate), dweight = sum over rows of dy n.
/// f(gate), n and z are computed again rather than kept.
template <class F, class T>
void gated_rms_norm_backward(Cpu, int64_t rows, int64_t columns, GateOrder order, const T* x, const T* gate,
                             const T* weight, const T* inverse_deviation, const T* dy, T* dx, T* dgate,
                             T* dweight);

/// y = x / sqrt(sum of x^2 + eps); inverse_length is 1 / that root.
template <class T>
void l2_normalize_forward(Cpu, int64_t rows, int64_t columns, double eps, const T* x, T* y,
                          T* inverse_length);
/// With n = x inverse_length: dx = (dy - n sum of dy n) inverse_length
template <class T>
void l2_normalize_backward(Cpu, int64_t rows, int64_t columns, const T* x, const T* inverse_length,
                           const T* dy, T* dx);

// On a GPU: cuda/kernels/norm.cu. All pointers are to device memory.
template <class T>
void layer_norm_forward(Cuda, int64_t rows, int64_t columns, double eps, const T* x, const T* weight,
                        const T* bias, T* y, T* mean, T* inverse_deviation);
template <class T>
void layer_norm_backward(Cuda, int64_t rows, int64_t columns, const T* x, const T* weight, const T* mean,
                         const T* inverse_deviation, const T* dy, T* dx, T* dweight, T* dbias);
template <class T>
void rms_norm_forward(Cuda, int64_t rows, int64_t columns, double eps, const T* x, const T* weight, T* y,
                      T* inverse_deviation);
template <class T>
void rms_norm_backward(Cuda, int64_t rows, int64_t columns, const T* x, const T* weight,
                       const T* inverse_deviation, const T* dy, T* dx, T* dweight);
template <class F, class T>
void gated_rms_norm_forward(Cuda, int64_t rows, int64_t columns, GateOrder order, double eps, const T* x,
                            const T* gate, const T* weight, T* y, T* inverse_deviation);
template <class F, class T>
void gated_rms_norm_backward(Cuda, int64_t rows, int64_t columns, GateOrder order, const T* x, const T* gate,
                             const T* weight, const T* inverse_deviation, const T* dy, T* dx, T* dgate,
                             T* dweight);
template <class T>
void l2_normalize_forward(Cuda, int64_t rows, int64_t columns, double eps, const T* x, T* y,
                          T* inverse_length);
template <class T>
void l2_normalize_backward(Cuda, int64_t rows, int64_t columns, const T* x, const T* inverse_length,
                           const T* dy, T* dx);

}  // namespace mixgrad
