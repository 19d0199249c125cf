#include "autograd/learning/momentum.h"

namespace mixgrad {

namespace {

/// The last n rows of x [B, H, m, columns].
Tensor last_rows(const Tensor& x, int64_t n) { return rows(x, x.shape()[2] - n, n); }
/// The last row, as a column [columns, 1].
Tensor last_as_column(const Tensor& x) {
  return last_rows(x, 1).reshape({x.shape()[0], x.shape()[1], x.shape()[3], 1});
}
void add_to_last(Tensor& x, const Tensor& column) {
  Tensor last = x.narrow(2, x.shape()[2] - 1, 1);
  last.copy_from(plus(last.contiguous(), column.reshape(last.shape())));
}
/// The sum of a (.) b over each matrix, [B, H, 1, 1].
Tensor inner_product(const Tensor& a, const Tensor& b) { return sum_of_rows(sum_of_columns(times(a, b))); }

}  // namespace

Momentum momentum(const Tensor& log_keep, const Tensor& log_momentum, const Tensor& applied) {
  Momentum r{decays(log_keep), decays(log_momentum), applied, {}, {}, {}};
  r.in_momentum = applied.defined() ? matmul(r.momentum.between, applied) : r.momentum.between;
  r.in_weights = matmul(r.keep.between, r.in_momentum);
  r.carried = matmul(r.keep.between, r.momentum.since);
  return r;
}

MomentumGradients::MomentumGradients(const Momentum& forward)
    : kept(zeros_like(forward.keep.since)),
      carried(zeros_like(forward.carried)),
      remembered(zeros_like(forward.momentum.since)),
      in_weights(zeros_like(forward.in_weights)),
      in_momentum(zeros_like(forward.in_momentum)) {}

MomentumInputGradients momentum_backward(const Momentum& f, const MomentumGradients& d) {
  Tensor dkeep = matmul(d.in_weights, transposed(f.in_momentum));
  add_matmul(dkeep, 1, d.carried, transposed(f.momentum.since));
  const Tensor din_momentum = plus(d.in_momentum, matmul(transposed(f.keep.between), d.in_weights));
  const Tensor dremembered = plus(d.remembered, matmul(transposed(f.keep.between), d.carried));
  const bool own = !f.applied.defined();
  const Tensor dmomentum = own ? din_momentum : matmul(din_momentum, transposed(f.applied));
  return {.log_keep = decays_backward(f.keep, dkeep, d.kept),
          .log_momentum = decays_backward(f.momentum, dmomentum, dremembered),
          .applied = own ? Tensor() : matmul(transposed(f.momentum.between), din_momentum)};
}

MomentumLayer momentum_layer(const Tensor& q, const Tensor& x, const Tensor& e, const Tensor& weight,
                             const Tensor& momentum, const Momentum& rates) {
  const int64_t n = q.shape()[2];
  const Tensor kept = last_rows(rates.keep.since, n), carried = last_rows(rates.carried, n);
  MomentumLayer layer{matmul(q, weight),
                      matmul(q, momentum),
                      descent_read(q, x, e, last_rows(rates.in_weights, n), false),
                      {},
                      {},
                      {}};
  layer.output =
      plus(plus(times(kept, layer.from_weight), times(carried, layer.from_momentum)), layer.read.change);
  layer.weight = plus(plus(times(last_rows(kept, 1), weight), times(last_rows(carried, 1), momentum)),
                      descent_write(x, e, last_as_column(rates.in_weights)));
  layer.momentum = plus(times(last_rows(rates.momentum.since, 1), momentum),
                        descent_write(x, e, last_as_column(rates.in_momentum)));
  return layer;
}

DescentGradients momentum_layer_backward(const MomentumLayer& layer, const Tensor& q, const Tensor& x,
                                         const Tensor& e, const Tensor& weight, const Tensor& momentum,
                                         const Momentum& rates, const Tensor& doutput, Tensor& dweight,
                                         Tensor& dmomentum, MomentumGradients& drates) {
  DescentGradients d = descent_read_backward(layer.read, q, x, e, rates.in_weights, doutput);
  drates.in_weights = plus(drates.in_weights, d.rates);
  add_to_last(drates.in_weights,
              descent_write_backward(x, e, last_as_column(rates.in_weights), dweight, {}, d));
  add_to_last(drates.in_momentum,
              descent_write_backward(x, e, last_as_column(rates.in_momentum), dmomentum, {}, d));
  drates.kept = plus(drates.kept, sum_of_columns(times(doutput, layer.from_weight)));
  drates.carried = plus(drates.carried, sum_of_columns(times(doutput, layer.from_momentum)));
  add_to_last(drates.kept, inner_product(dweight, weight));
  add_to_last(drates.carried, inner_product(dweight, momentum));
  add_to_last(drates.remembered, inner_product(dmomentum, momentum));

  const Tensor &kept = rates.keep.since, &carried = rates.carried;
  const Tensor dfrom_weight = times(kept, doutput), dfrom_momentum = times(carried, doutput);
  add_matmul(d.q, 1, dfrom_weight, transposed(weight));
  add_matmul(d.q, 1, dfrom_momentum, transposed(momentum));
  dmomentum =
      plus(times(last_rows(carried, 1), dweight), times(last_rows(rates.momentum.since, 1), dmomentum));
  add_matmul(dmomentum, 1, transposed(q), dfrom_momentum);
  dweight = times(last_rows(kept, 1), dweight);
  add_matmul(dweight, 1, transposed(q), dfrom_weight);
  return d;
}

}  // namespace mixgrad
