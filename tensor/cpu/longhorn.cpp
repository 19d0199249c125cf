// The step sizes of Longhorn on the CPU: tasks are blocks of tokens.
#include "tensor/kernels/longhorn.h"

#include "tensor/cpu/reduce.h"
#include "tensor/parallel.h"

namespace mixgrad {

namespace {

/// Calls body(row of k, first entry of beta, number of entries) for every token and key head, in parallel.
template <class Body>
void for_each_key(const LonghornShape& s, const Body& body) {
  const int64_t group = s.heads / s.key_heads;
  parallel_blocks(s.tokens * s.key_heads, rows_per_block(s.key_dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row, row * group, group);
  });
}

template <class T>
T squared_length(int64_t dim, const T* k) {
  return row_sum<T>(dim, [=](int64_t m) { return k[m] * k[m]; });
}

}  // namespace

template <class T>
void longhorn_rate_forward(Cpu, const LonghornShape& s, const T* k, const T* beta, T* rate) {
  for_each_key(s, [=](int64_t row, int64_t first, int64_t group) {
    const T n = squared_length(s.key_dim, k + row * s.key_dim);
    for (int64_t h = first; h < first + group; ++h) rate[h] = beta[h] / (1 + beta[h] * n);
  });
}

template <class T>
void longhorn_rate_backward(Cpu, const LonghornShape& s, const T* k, const T* beta, const T* drate, T* dk,
                            T* dbeta) {
  for_each_key(s, [=](int64_t row, int64_t first, int64_t group) {
    const T* key = k + row * s.key_dim;
    const T n = squared_length(s.key_dim, key);
    T dn = 0;
    for (int64_t h = first; h < first + group; ++h) {
      const T inverse = 1 / (1 + beta[h] * n), rate = beta[h] * inverse;
      dbeta[h] = inverse * inverse * drate[h];
      dn -= rate * rate * drate[h];
    }
    for (int64_t m = 0; m < s.key_dim; ++m) dk[row * s.key_dim + m] = 2 * dn * key[m];
  });
}

#define INSTANTIATE(T)                                                                       \
  template void longhorn_rate_forward<T>(Cpu, const LonghornShape&, const T*, const T*, T*); \
  template void longhorn_rate_backward<T>(Cpu, const LonghornShape&, const T*, const T*, const T*, T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace mixgrad
