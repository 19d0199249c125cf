#include "autograd/ops/ttt_mlp.h"

#include "autograd/learning/chunked.h"
#include "autograd/learning/norm_regression.h"
#include "autograd/learning/ttt.h"
#include "autograd/learning/two_layers.h"
#include "autograd/ops/elementwise.h"

namespace mixgrad {

namespace {

/// A mini-batch. At its begin, z1 = k W1 + b1, x2 = GELU(z1), z2 = x2 W2 + b2, and u1 and u2 are the
/// gradients of the losses by z1 and z2. Both layers read and go on as in ttt.h: the first with queries q,
/// inputs k and errors rate (.) u1, the second with queries GELU(of what the first gives), inputs x2 and
/// errors rate (.) u2.
struct TttMlpCore {
  static constexpr std::string_view name = "ttt_mlp";
  static constexpr int token_inputs = 4;  // q, k, v, rate
  static constexpr int parameters = 3;    // gamma, beta [H, 1, d], row [M]; the state: W1, b1, W2, b2
  double eps;

  struct Pass {
    Tensor z1, x2;
    NormRegression loss;
    HiddenErrors errors;
    Tensor e1, e2;
    TttRates rates;
    TttLayer layer1, layer2;
    Tensor hidden;  // the queries of the second layer
    Tensor output;
    Tensors state;
  };

  Pass forward(const Tensors& in, const Tensors& state) const {
    const Tensor &q = in[0], &k = in[1], &v = in[2], &rate = in[3], &gamma = in[4], &beta = in[5];
    const Tensor &weight1 = state[0], &bias1 = state[1], &weight2 = state[2], &bias2 = state[3];
    Pass p;
    p.z1 = plus(matmul(k, weight1), bias1);
    p.x2 = mapped<GeluTanh>(p.z1);
    p.loss = norm_regression(plus(matmul(p.x2, weight2), bias2), minus(v, k), gamma, beta, eps);
    p.errors = hidden_errors(p.z1, p.loss.gradient, weight2);
    p.e1 = times(rate, p.errors.gradient);
    p.e2 = times(rate, p.loss.gradient);
    p.rates = ttt_rates(in[6], k.shape()[2]);
    p.layer1 = ttt_layer(q, k, p.e1, weight1, bias1, p.rates);
    p.hidden = mapped<GeluTanh>(p.layer1.output);
    p.layer2 = ttt_layer(p.hidden, p.x2, p.e2, weight2, bias2, p.rates);
    p.output = p.layer2.output;
    p.state = {p.layer1.weight, p.layer1.bias, p.layer2.weight, p.layer2.bias};
    return p;
  }

  Tensors backward(const Tensors& in, const Tensors& state, const Pass& p, const Tensor& doutput,
                   Tensors& dstate) const {
    const Tensor &q = in[0], &k = in[1], &rate = in[3], &gamma = in[4];
    const Tensor &weight1 = state[0], &weight2 = state[2];
    Tensor &dweight1 = dstate[0], &dbias1 = dstate[1], &dweight2 = dstate[2], &dbias2 = dstate[3];
    TttRates drates{zeros_like(p.rates.matrix), zeros_like(p.rates.last)};

    // Reading and going on: from the second layer to the first.
    DescentGradients d2 = ttt_layer_backward(p.layer2, p.hidden, p.x2, p.e2, weight2, p.rates, doutput,
                                             dweight2, dbias2, drates);
    DescentGradients d1 =
        ttt_layer_backward(p.layer1, q, k, p.e1, weight1, p.rates,
                           mapped_backward<GeluTanh>(p.layer1.output, d2.q), dweight1, dbias1, drates);
    // The errors: from the first layer to the second, against the order in which they were computed.
    Tensor du2 = times(rate, d2.e);
    const Tensor dz1 =
        hidden_errors_backward(p.errors, p.z1, p.loss.gradient, weight2, times(rate, d1.e), du2, dweight2);
    const NormRegressionGradients dloss = norm_regression_backward(p.loss, gamma, du2);
    // What the network gave for the keys.
    const Tensor danswer1 =
        two_layers_backward(k, p.z1, p.x2, weight1, weight2, dloss.z, d2.x, dz1, d1.x, dweight1, dweight2);
    dbias2 = plus(dbias2, sum_of_rows(dloss.z));
    dbias1 = plus(dbias1, sum_of_rows(danswer1));

    const Tensor drate =
        plus(sum_of_columns(times(d1.e, p.errors.gradient)), sum_of_columns(times(d2.e, p.loss.gradient)));
    return {d1.q,       minus(d1.x, dloss.target),        dloss.target, drate, dloss.gamma,
            dloss.beta, ttt_rates_backward(in[6], drates)};
  }
};

}  // namespace

TttMlp ttt_mlp(const Variable& q, const Variable& k, const Variable& v, const Variable& rate,
               const Variable& gamma, const Variable& beta, const Variable& row, const TttNetwork& network,
               const TttOptions& options) {
  check_ttt_inputs("ttt_mlp", q.shape(), k.shape(), v.shape(), rate.shape(), gamma.shape(), beta.shape(),
                   row.shape(), options.mini_batch);
  const int64_t batch = q.shape()[0], heads = q.shape()[2], d = q.shape()[3];
  const Shape &weight1 = network.weight1.shape(), &bias1 = network.bias1.shape();
  const Shape &weight2 = network.weight2.shape(), &bias2 = network.bias2.shape();
  check(weight1.rank() == 4 && weight1 == Shape({batch, heads, d, weight1[3]}) &&
            bias1 == Shape({batch, heads, weight1[3]}) && weight2 == Shape({batch, heads, weight1[3], d}) &&
            bias2 == Shape({batch, heads, d}),
        "[ttt_mlp] weight1 ", weight1, ", bias1 ", bias1, ", weight2 ", weight2, ", bias2 ", bias2,
        ": they must be [B, H, d, F], [B, H, F], [B, H, F, d] and [B, H, d]");
  const auto by_head = [&](const Variable& x) { return reshape(x, {heads, 1, d}); };
  const auto as_row = [&](const Variable& bias) { return reshape(bias, {batch, heads, 1, bias.shape()[2]}); };
  const auto outputs = apply(Chunked<TttMlpCore>{{options.eps}, options.mini_batch}, q, k, v, rate,
                             by_head(gamma), by_head(beta), row, network.weight1, as_row(network.bias1),
                             network.weight2, as_row(network.bias2));
  return {.output = outputs[0],
          .network = {outputs[1], reshape(outputs[2], bias1), outputs[3], reshape(outputs[4], bias2)}};
}

Tensor ttt_mlp_read_on(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rate,
                       const Tensor& gamma, const Tensor& beta, const Tensor& row, const TttOptions& options,
                       int64_t position, Tensors& memory) {
  const Shape by_head{gamma.shape()[0], 1, gamma.shape()[1]};
  return read_on(TttMlpCore{options.eps}, options.mini_batch,
                 {q, k, v, rate, gamma.reshape(by_head), beta.reshape(by_head), row}, position, memory);
}

std::vector<GradCase> ttt_mlp_cases(CaseInputs& inputs) {
  GradCase two_mini_batches{
      "ttt_mlp, a short mini-batch at the end",
      {inputs.normal("q", {2, 5, 2, 3}), inputs.normal("k", {2, 5, 2, 3}), inputs.normal("v", {2, 5, 2, 3}),
       inputs.uniform("rate", {2, 5, 2}, 0.02, 0.3), inputs.uniform("gamma", {2, 3}, 0.7, 1.3),
       inputs.normal("beta", {2, 3}, 0.2), inputs.uniform("row", {3}, 0.3, 1),
       inputs.normal("weight1", {2, 2, 3, 5}, 0.5), inputs.normal("bias1", {2, 2, 5}, 0.2),
       inputs.normal("weight2", {2, 2, 5, 3}, 0.5), inputs.normal("bias2", {2, 2, 3}, 0.2)},
      {}};
  two_mini_batches.function = [](const std::vector<Variable>& in) {
    const TttMlp r = ttt_mlp(in[0], in[1], in[2], in[3], in[4], in[5], in[6], {in[7], in[8], in[9], in[10]},
                             {.mini_batch = 3, .eps = 0.1});
    return std::vector{r.output, r.network.weight1, r.network.bias1, r.network.weight2, r.network.bias2};
  };
  return {two_mini_batches};
}

}  // namespace mixgrad
