#include "autograd/learning/decay.h"

#include <limits>

namespace mixgrad {

Decays decays(const Tensor& log_decay) {
  const int64_t m = log_decay.shape()[2];
  const Tensor sums = matmul(lower_triangle(m, log_decay), log_decay);  // [B, H, m, 1]
  const Tensor row = times(-1, sums).reshape({sums.shape()[0], sums.shape()[1], 1, m});
  const Tensor never = triangle(m, 0, 0, -std::numeric_limits<double>::infinity(), log_decay);
  return {.between = mapped<Exp>(plus(plus(sums, row), never)), .since = mapped<Exp>(sums)};
}

Tensor decays_backward(const Decays& decays, const Tensor& dbetween, const Tensor& dsince) {
  const int64_t m = dsince.shape()[2];
  const Tensor lower = lower_triangle(m, dsince);  // whose transpose adds up what comes from t on
  const Tensor pairs = matmul(transposed(lower), times(dbetween, decays.between));  // [t, j], over i >= t
  const Tensor before = triangle(m, 1, 0, 0, dsince);
  return plus(sum_of_columns(times(pairs, before)), matmul(transposed(lower), times(dsince, decays.since)));
}

}  // namespace mixgrad
