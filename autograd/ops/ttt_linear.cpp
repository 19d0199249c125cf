#include "autograd/ops/ttt_linear.h"

#include "autograd/learning/chunked.h"
#include "autograd/learning/norm_regression.h"
#include "autograd/learning/ttt.h"
#include "autograd/ops/elementwise.h"

namespace mixgrad {

namespace {

/// A mini-batch, with u the gradients of its losses with respect to k W + b: the layer of ttt.h with errors
/// rate (.) u.
struct TttLinearCore {
  static constexpr std::string_view name = "ttt_linear";
  static constexpr int token_inputs = 4;  // q, k, v, rate
  static constexpr int parameters = 3;    // gamma, beta [H, 1, d], row [M]; the state: W, b
  double eps;

  struct Pass {
    NormRegression loss;
    Tensor e;
    TttRates rates;
    TttLayer layer;
    Tensor output;
    Tensors state;
  };

  Pass forward(const Tensors& in, const Tensors& state) const {
    const Tensor &q = in[0], &k = in[1], &v = in[2], &rate = in[3], &gamma = in[4], &beta = in[5];
    const Tensor &weight = state[0], &bias = state[1];
    Pass p;
    p.loss = norm_regression(plus(matmul(k, weight), bias), minus(v, k), gamma, beta, eps);
    p.rates = ttt_rates(in[6], k.shape()[2]);
    p.e = times(rate, p.loss.gradient);
    p.layer = ttt_layer(q, k, p.e, weight, bias, p.rates);
    p.output = p.layer.output;
    p.state = {p.layer.weight, p.layer.bias};
    return p;
  }

  Tensors backward(const Tensors& in, const Tensors& state, const Pass& p, const Tensor& doutput,
                   Tensors& dstate) const {
    const Tensor &q = in[0], &k = in[1], &rate = in[3], &gamma = in[4], &weight = state[0];
    Tensor &dweight = dstate[0], &dbias = dstate[1];
    TttRates drates{zeros_like(p.rates.matrix), zeros_like(p.rates.last)};
    DescentGradients d =
        ttt_layer_backward(p.layer, q, k, p.e, weight, p.rates, doutput, dweight, dbias, drates);
    const NormRegressionGradients dloss = norm_regression_backward(p.loss, gamma, times(rate, d.e));
    add_matmul(d.x, 1, dloss.z, transposed(weight));
    add_matmul(dweight, 1, transposed(k), dloss.z);
    dbias = plus(dbias, sum_of_rows(dloss.z));
    return {d.q,
            minus(d.x, dloss.target),
            dloss.target,
            sum_of_columns(times(d.e, p.loss.gradient)),
            dloss.gamma,
            dloss.beta,
            ttt_rates_backward(in[6], drates)};
  }
};

}  // namespace

TttLinear ttt_linear(const Variable& q, const Variable& k, const Variable& v, const Variable& rate,
                     const Variable& gamma, const Variable& beta, const Variable& row, const Variable& weight,
                     const Variable& bias, const TttOptions& options) {
  check_ttt_inputs("ttt_linear", q.shape(), k.shape(), v.shape(), rate.shape(), gamma.shape(), beta.shape(),
                   row.shape(), options.mini_batch);
  const int64_t batch = q.shape()[0], heads = q.shape()[2], d = q.shape()[3];
  check(weight.shape() == Shape({batch, heads, d, d}) && bias.shape() == Shape({batch, heads, d}),
        "[ttt_linear] weight ", weight.shape(), ", bias ", bias.shape(),
        "; allowed: ", Shape{batch, heads, d, d}, " and ", Shape{batch, heads, d});
  const auto by_head = [&](const Variable& x) { return reshape(x, {heads, 1, d}); };
  const auto outputs = apply(Chunked<TttLinearCore>{{options.eps}, options.mini_batch}, q, k, v, rate,
                             by_head(gamma), by_head(beta), row, weight, reshape(bias, {batch, heads, 1, d}));
  return {.output = outputs[0], .weight = outputs[1], .bias = reshape(outputs[2], bias.shape())};
}

Tensor ttt_linear_read_on(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rate,
                          const Tensor& gamma, const Tensor& beta, const Tensor& row,
                          const TttOptions& options, int64_t position, Tensors& memory) {
  const Shape by_head{gamma.shape()[0], 1, gamma.shape()[1]};
  return read_on(TttLinearCore{options.eps}, options.mini_batch,
                 {q, k, v, rate, gamma.reshape(by_head), beta.reshape(by_head), row}, position, memory);
}

std::vector<GradCase> ttt_linear_cases(CaseInputs& inputs) {
  const auto make = [&](std::string name, int64_t length, int64_t mini_batch) {
    GradCase result{"ttt_linear, " + std::move(name),
                    {inputs.normal("q", {2, length, 2, 4}), inputs.normal("k", {2, length, 2, 4}),
                     inputs.normal("v", {2, length, 2, 4}), inputs.uniform("rate", {2, length, 2}, 0.02, 0.3),
                     inputs.uniform("gamma", {2, 4}, 0.7, 1.3), inputs.normal("beta", {2, 4}, 0.2),
                     inputs.uniform("row", {mini_batch}, 0.3, 1), inputs.normal("weight", {2, 2, 4, 4}, 0.5),
                     inputs.normal("bias", {2, 2, 4}, 0.2)},
                    {}};
    result.function = [mini_batch](const std::vector<Variable>& in) {
      const TttLinear r = ttt_linear(in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], in[8],
                                     {.mini_batch = mini_batch, .eps = 0.1});
      return std::vector{r.output, r.weight, r.bias};
    };
    return result;
  };
  return {make("a short mini-batch at the end", 7, 3),
          make("two stretches of mini-batches of one token", 9, 1)};
}

}  // namespace mixgrad
