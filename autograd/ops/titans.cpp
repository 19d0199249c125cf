#include "autograd/ops/titans.h"

#include "autograd/learning/chunked.h"
#include "autograd/learning/momentum.h"
#include "autograd/learning/two_layers.h"

namespace mixgrad {

namespace {

/// A chunk of a linear memory: the layer of momentum.h with errors rate (.) (k W - v).
struct TitansLinearCore {
  static constexpr std::string_view name = "titans_linear";
  static constexpr int token_inputs = 6;  // q, k, v, rate, log_keep, log_momentum
  static constexpr int parameters = 0;    // the state: W, S

  struct Pass {
    Tensor error, e;
    Momentum rates;
    MomentumLayer layer;
    Tensor output;
    Tensors state;
  };

  Pass forward(const Tensors& in, const Tensors& state) const {
    const Tensor &q = in[0], &k = in[1], &v = in[2], &rate = in[3], &weight = state[0];
    Pass p;
    p.error = minus(matmul(k, weight), v);
    p.e = times(rate, p.error);
    p.rates = momentum(in[4], in[5]);
    p.layer = momentum_layer(q, k, p.e, weight, state[1], p.rates);
    p.output = p.layer.output;
    p.state = {p.layer.weight, p.layer.momentum};
    return p;
  }

  Tensors backward(const Tensors& in, const Tensors& state, const Pass& p, const Tensor& doutput,
                   Tensors& dstate) const {
    const Tensor &q = in[0], &k = in[1], &rate = in[3], &weight = state[0];
    Tensor &dweight = dstate[0], &dmomentum = dstate[1];
    MomentumGradients drates(p.rates);
    DescentGradients d = momentum_layer_backward(p.layer, q, k, p.e, weight, state[1], p.rates, doutput,
                                                 dweight, dmomentum, drates);
    const Tensor derror = times(rate, d.e);
    add_matmul(d.x, 1, derror, transposed(weight));
    add_matmul(dweight, 1, transposed(k), derror);
    const MomentumInputGradients dgates = momentum_backward(p.rates, drates);
    return {d.q,
            d.x,
            times(-1, derror),
            sum_of_columns(times(d.e, p.error)),
            dgates.log_keep,
            dgates.log_momentum};
  }
};

/// A chunk of a memory of two layers. At the weights before it, z1 = k W1, x2 = GELU(z1), u2 = x2 W2 - v, and
/// u1 is the gradient of the losses by z1. Both layers are those of momentum.h: the first with queries q,
/// inputs k and errors rate (.) u1, the second with queries GELU(of what the first gives), inputs x2 and
/// errors rate (.) u2.
struct TitansMlpCore {
  static constexpr std::string_view name = "titans_mlp";
  static constexpr int token_inputs = 6;  // q, k, v, rate, log_keep, log_momentum
  static constexpr int parameters = 0;    // the state: W1, W2, S1, S2

  struct Pass {
    Tensor z1, x2;
    Tensor u2;
    HiddenErrors errors;
    Tensor e1, e2;
    Momentum rates;
    MomentumLayer layer1, layer2;
    Tensor hidden;  // the queries of the second layer
    Tensor output;
    Tensors state;
  };

  Pass forward(const Tensors& in, const Tensors& state) const {
    const Tensor &q = in[0], &k = in[1], &v = in[2], &rate = in[3];
    const Tensor &weight1 = state[0], &weight2 = state[1];
    Pass p;
    p.z1 = matmul(k, weight1);
    p.x2 = mapped<GeluTanh>(p.z1);
    p.u2 = minus(matmul(p.x2, weight2), v);
    p.errors = hidden_errors(p.z1, p.u2, weight2);
    p.e1 = times(rate, p.errors.gradient);
    p.e2 = times(rate, p.u2);
    p.rates = momentum(in[4], in[5]);
    p.layer1 = momentum_layer(q, k, p.e1, weight1, state[2], p.rates);
    p.hidden = mapped<GeluTanh>(p.layer1.output);
    p.layer2 = momentum_layer(p.hidden, p.x2, p.e2, weight2, state[3], p.rates);
    p.output = p.layer2.output;
    p.state = {p.layer1.weight, p.layer2.weight, p.layer1.momentum, p.layer2.momentum};
    return p;
  }

  Tensors backward(const Tensors& in, const Tensors& state, const Pass& p, const Tensor& doutput,
                   Tensors& dstate) const {
    const Tensor &q = in[0], &k = in[1], &rate = in[3], &weight1 = state[0], &weight2 = state[1];
    Tensor &dweight1 = dstate[0], &dweight2 = dstate[1];
    MomentumGradients drates(p.rates);

    // Reading and going on: from the second layer to the first.
    DescentGradients d2 = momentum_layer_backward(p.layer2, p.hidden, p.x2, p.e2, weight2, state[3], p.rates,
                                                  doutput, dweight2, dstate[3], drates);
    DescentGradients d1 = momentum_layer_backward(p.layer1, q, k, p.e1, weight1, state[2], p.rates,
                                                  mapped_backward<GeluTanh>(p.layer1.output, d2.q), dweight1,
                                                  dstate[2], drates);
    // The errors: from the first layer to the second, against the order in which they were computed.
    Tensor du2 = times(rate, d2.e);
    const Tensor dz1 =
        hidden_errors_backward(p.errors, p.z1, p.u2, weight2, times(rate, d1.e), du2, dweight2);
    // What the memory gave for the keys.
    two_layers_backward(k, p.z1, p.x2, weight1, weight2, du2, d2.x, dz1, d1.x, dweight1, dweight2);

    const Tensor drate =
        plus(sum_of_columns(times(d1.e, p.errors.gradient)), sum_of_columns(times(d2.e, p.u2)));
    const MomentumInputGradients dgates = momentum_backward(p.rates, drates);
    return {d1.q, d1.x, times(-1, du2), drate, dgates.log_keep, dgates.log_momentum};
  }
};

void check_shapes(const Shape& q, const Shape& k, const Shape& v, const TitansGates& gates,
                  const TitansMemory& memory, const TitansOptions& options) {
  check_usage(options.chunk > 0, "[titans] chunk ", options.chunk, "; allowed: 1 or more");
  const Shape &rate = gates.rate.shape(), &keep = gates.log_keep.shape();
  check(q.rank() == 4 && k == q && v.rank() == 4 && v.drop_last() == q.drop_last() && rate == q.drop_last() &&
            keep == rate && gates.log_momentum.shape() == rate,
        "[titans] q ", q, ", k ", k, ", v ", v, ", rate ", rate, ", log_keep ", keep, ", log_momentum ",
        gates.log_momentum.shape(),
        ": they must be [B, T, H, dk], the same, [B, T, H, dv], and [B, T, H] each");
  const auto layers = memory.weights.size();
  check((layers == 1 || layers == 2) && memory.momentum.size() == layers, "[titans] ", layers,
        " weights and ", memory.momentum.size(), " momenta; allowed: 1 or 2, and as many");
  int64_t in = q[3];
  for (size_t layer = 0; layer < layers; ++layer) {
    const Shape& weight = memory.weights[layer].shape();
    const int64_t out = layer + 1 == layers || weight.rank() != 4 ? v[3] : weight[3];
    const Shape wanted{q[0], q[2], in, out};
    check(weight == wanted && memory.momentum[layer].shape() == wanted, "[titans] weight ", weight,
          " and momentum ", memory.momentum[layer].shape(), " of layer ", layer + 1, "; allowed: ", wanted);
    in = out;
  }
}

}  // namespace

Titans titans(const Variable& q, const Variable& k, const Variable& v, const TitansGates& gates,
              const TitansMemory& memory, const TitansOptions& options) {
  check_shapes(q.shape(), k.shape(), v.shape(), gates, memory, options);
  const auto &w = memory.weights, &s = memory.momentum;
  const Variable &rate = gates.rate, &keep = gates.log_keep, &momentum = gates.log_momentum;
  if (w.size() == 1) {
    const auto out =
        apply(Chunked<TitansLinearCore>{{}, options.chunk}, q, k, v, rate, keep, momentum, w[0], s[0]);
    return {.output = out[0], .memory = {{out[1]}, {out[2]}}};
  }
  const auto out =
      apply(Chunked<TitansMlpCore>{{}, options.chunk}, q, k, v, rate, keep, momentum, w[0], w[1], s[0], s[1]);
  return {.output = out[0], .memory = {{out[1], out[2]}, {out[3], out[4]}}};
}

Tensor titans_read_on(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rate,
                      const Tensor& log_keep, const Tensor& log_momentum, const TitansOptions& options,
                      int64_t position, Tensors& memory) {
  const Tensors inputs = {q, k, v, rate, log_keep, log_momentum};
  const bool linear = memory.size() == 2 + inputs.size() - 1;
  return linear ? read_on(TitansLinearCore{}, options.chunk, inputs, position, memory)
                : read_on(TitansMlpCore{}, options.chunk, inputs, position, memory);
}

std::vector<GradCase> titans_cases(CaseInputs& inputs) {
  const auto make = [&](std::string name, int64_t length, int64_t chunk, const std::vector<Shape>& layers) {
    GradCase result{"titans, " + std::move(name),
                    {inputs.normal("q", {2, length, 2, 3}, 0.7), inputs.normal("k", {2, length, 2, 3}, 0.7),
                     inputs.normal("v", {2, length, 2, 4}), inputs.uniform("rate", {2, length, 2}, 0.02, 0.3),
                     inputs.uniform("log_keep", {2, length, 2}, -1, -0.1),
                     inputs.uniform("log_momentum", {2, length, 2}, -2, -0.1)},
                    {}};
    for (const Shape& shape : layers) result.inputs.push_back(inputs.normal("weight", shape, 0.5));
    for (const Shape& shape : layers) result.inputs.push_back(inputs.normal("momentum", shape, 0.2));
    const auto count = static_cast<int64_t>(layers.size());
    result.function = [chunk, count](const std::vector<Variable>& in) {
      const auto first = in.begin() + 6;
      const Titans r = titans(in[0], in[1], in[2], {in[3], in[4], in[5]},
                              {{first, first + count}, {first + count, in.end()}}, {.chunk = chunk});
      std::vector<Variable> outputs = {r.output};
      outputs.insert(outputs.end(), r.memory.weights.begin(), r.memory.weights.end());
      outputs.insert(outputs.end(), r.memory.momentum.begin(), r.memory.momentum.end());
      return outputs;
    };
    return result;
  };
  return {make("linear, a short chunk at the end", 7, 3, {{2, 2, 3, 4}}),
          make("linear, two stretches of chunks of one token", 9, 1, {{2, 2, 3, 4}}),
          make("two layers", 5, 3, {{2, 2, 3, 5}, {2, 2, 5, 4}})};
}

}  // namespace mixgrad
