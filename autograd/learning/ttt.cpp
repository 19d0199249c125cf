#include "autograd/learning/ttt.h"

namespace mixgrad {

void check_ttt_inputs(std::string_view op, const Shape& q, const Shape& k, const Shape& v, const Shape& rate,
                      const Shape& gamma, const Shape& beta, const Shape& row, int64_t mini_batch) {
  check_usage(mini_batch > 0, "[", op, "] mini_batch ", mini_batch, "; allowed: 1 or more");
  check(q.rank() == 4 && k == q && v == q && rate == q.drop_last() && gamma == Shape{q[2], q[3]} &&
            beta == gamma && row == Shape{mini_batch},
        "[", op, "] q ", q, ", k ", k, ", v ", v, ", rate ", rate, ", gamma ", gamma, ", beta ", beta,
        ", row ", row, ": they must be [B, T, H, d], the same twice, [B, T, H], [H, d], the same, and [",
        mini_batch, "]");
}

TttRates ttt_rates(const Tensor& row, int64_t m) {
  const Tensor matrix = times(row.narrow(0, 0, m).reshape({m, 1}), lower_triangle(m, row));
  return {matrix, matrix.narrow(0, m - 1, 1).reshape({m, 1})};
}

Tensor ttt_rates_backward(const Tensor& row, const TttRates& drates) {
  const int64_t m = drates.last.elements();
  Tensor last_row = drates.matrix.narrow(0, m - 1, 1);
  last_row.copy_from(plus(last_row, drates.last.reshape({1, m})));
  Tensor drow = zeros_like(row);
  drow.narrow(0, 0, m).copy_from(
      summed_to({m, 1}, times(drates.matrix, lower_triangle(m, row))).reshape({m}));
  return drow;
}

TttLayer ttt_layer(const Tensor& q, const Tensor& x, const Tensor& e, const Tensor& weight,
                   const Tensor& bias, const TttRates& rates) {
  const int64_t m = x.shape()[2], n = q.shape()[2];
  const DescentRead read = descent_read(q, x, e, rates.matrix.narrow(0, m - n, n), true);
  return {.read = read,
          .output = plus(plus(matmul(q, weight), bias), read.change),
          .weight = plus(weight, descent_write(x, e, rates.last)),
          .bias = plus(bias, descent_write_bias(e, rates.last))};
}

DescentGradients ttt_layer_backward(const TttLayer& layer, const Tensor& q, const Tensor& x, const Tensor& e,
                                    const Tensor& weight, const TttRates& rates, const Tensor& doutput,
                                    Tensor& dweight, Tensor& dbias, TttRates& drates) {
  DescentGradients d = descent_read_backward(layer.read, q, x, e, rates.matrix, doutput);
  drates.matrix = plus(drates.matrix, d.rates);
  drates.last = plus(drates.last, descent_write_backward(x, e, rates.last, dweight, dbias, d));
  add_matmul(d.q, 1, doutput, transposed(weight));
  add_matmul(dweight, 1, transposed(q), doutput);
  dbias = plus(dbias, sum_of_rows(doutput));
  return d;
}

}  // namespace mixgrad
