#include "autograd/learning/descent.h"

namespace mixgrad {

DescentRead descent_read(const Tensor& q, const Tensor& x, const Tensor& e, const Tensor& rates, bool bias) {
  Tensor gram = matmul(q, transposed(x));
  if (bias) gram = plus(gram, Tensor::full({1}, 1, q.dtype(), q.device()));
  const Tensor weights = times(rates, gram);
  return {gram, weights, times(-1, matmul(weights, e))};
}

DescentGradients descent_read_backward(const DescentRead& read, const Tensor& q, const Tensor& x,
                                       const Tensor& e, const Tensor& rates, const Tensor& dchange) {
  const Tensor dweights = times(-1, matmul(dchange, transposed(e)));
  const Tensor dgram = times(rates, dweights);
  return {.q = matmul(dgram, x),
          .x = matmul(transposed(dgram), q),
          .e = times(-1, matmul(transposed(read.weights), dchange)),
          .rates = summed_to(rates.shape(), times(read.gram, dweights))};
}

Tensor descent_write(const Tensor& x, const Tensor& e, const Tensor& rates) {
  return times(-1, matmul(transposed(x), times(rates, e)));
}

Tensor descent_write_bias(const Tensor& e, const Tensor& rates) {
  return times(-1, sum_of_rows(times(rates, e)));
}

Tensor descent_write_backward(const Tensor& x, const Tensor& e, const Tensor& rates, const Tensor& dweight,
                              const Tensor& dbias, DescentGradients& gradients) {
  Tensor dscaled = matmul(x, dweight);  // of -rates (.) e
  if (dbias.defined()) dscaled = plus(dscaled, dbias);
  gradients.e = minus(gradients.e, times(rates, dscaled));
  add_matmul(gradients.x, -1, times(rates, e), transposed(dweight));
  return summed_to(rates.shape(), times(-1, sum_of_columns(times(e, dscaled))));
}

}  // namespace mixgrad
