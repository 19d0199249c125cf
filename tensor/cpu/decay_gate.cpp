// The forgetting gate on the CPU. A row is a token's H * channels gates; -exp(A_log) is spread over a row
// first, so that the loops along it know nothing of heads.
#include "tensor/kernels/decay_gate.h"

#include <algorithm>
#include <cmath>

#include "tensor/allocator.h"
#include "tensor/cpu/reduce.h"
#include "tensor/kernels/scalar.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

/// rate[h, c] = -exp(A_log[h])
template <class T>
void spread_rates(const DecayGateShape& s, const T* A_log, T* rate) {
  for (int64_t h = 0; h < s.heads; ++h) std::fill_n(rate + h * s.channels, s.channels, -std::exp(A_log[h]));
}

}  // namespace

template <class T>
void decay_gate_forward(Cpu, DecayGateShape s, const T* a, const T* A_log, const T* dt_bias, T* g) {
  const int64_t columns = s.heads * s.channels;
  Scratch<T> rates(columns);
  T* rate = rates.data();
  spread_rates(s, A_log, rate);
  parallel_blocks(s.tokens, rows_per_block(columns), [=](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const T* in = a + token * columns;
      T* out = g + token * columns;
      for (int64_t j = 0; j < columns; ++j) out[j] = rate[j] * softplus(in[j] + dt_bias[j]);
    }
  });
}

template <class T>
void decay_gate_backward(Cpu, DecayGateShape s, const T* a, const T* A_log, const T* dt_bias, const T* g,
                         const T* dg, T* da, T* dA_log, T* ddt_bias) {
  const int64_t columns = s.heads * s.channels;
  const int64_t block_tokens = rows_per_partial_sum(s.tokens, columns);
  const int64_t blocks = (s.tokens + block_tokens - 1) / block_tokens;
  Scratch<T> scratch((3 * blocks + 2) * columns);
  T* rate = scratch.data();
  T* dA_log_columns = rate + columns;  // [H, channels], before the sum over channels
  T* dA_log_parts = dA_log_columns + columns;
  T* dbias_parts = dA_log_parts + blocks * columns;
  T* slopes = dbias_parts + blocks * columns;
  spread_rates(s, A_log, rate);
  parallel_blocks(s.tokens, block_tokens, [=](int64_t begin, int64_t end) {
    const int64_t slice = begin / block_tokens * columns;
    T* dA_log_part = dA_log_parts + slice;
    T* dbias_part = dbias_parts + slice;
    T* slope = slopes + slice;  // a token's da
    std::fill_n(dA_log_part, columns, T(0));
    std::fill_n(dbias_part, columns, T(0));
    for (int64_t token = begin; token < end; ++token) {
      const T* in = a + token * columns;
      const T* gate = g + token * columns;
      const T* gradient = dg + token * columns;
      for (int64_t j = 0; j < columns; ++j) slope[j] = gradient[j] * rate[j] * sigmoid(in[j] + dt_bias[j]);
      for (int64_t j = 0; j < columns; ++j) dbias_part[j] += slope[j];
      for (int64_t j = 0; j < columns; ++j) dA_log_part[j] += gradient[j] * gate[j];
      if (da != nullptr) std::copy_n(slope, columns, da + token * columns);
    }
  });
  sum_blocks(blocks, columns, dbias_parts, ddt_bias);
  if (dA_log == nullptr) return;
  sum_blocks(blocks, columns, dA_log_parts, dA_log_columns);
  for (int64_t h = 0; h < s.heads; ++h) {
    dA_log[h] = row_sum<T>(s.channels, [=](int64_t c) { return dA_log_columns[h * s.channels + c]; });
  }
}

#define INSTANTIATE(T)                                                                              \
  template void decay_gate_forward<T>(Cpu, DecayGateShape, const T*, const T*, const T*, T*);       \
  template void decay_gate_backward<T>(Cpu, DecayGateShape, const T*, const T*, const T*, const T*, \
                                       const T*, T*, T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
