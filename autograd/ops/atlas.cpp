#include "autograd/ops/atlas.h"

#include "autograd/learning/chunked.h"
#include "autograd/learning/momentum.h"

namespace mixgrad {

namespace {

/// A chunk of m tokens, which also looks at the c - 1 before it: the layer of momentum.h with their keys K
/// and errors gamma (.) (K W - V), m' = c - 1 + m of them, of which step t applies those of its window.
struct AtlasCore {
  static constexpr std::string_view name = "atlas";
  static constexpr int token_inputs = 7;  // q, k, v, rate, weight, log_keep, log_momentum
  static constexpr int parameters = 0;    // the state: W, S, and k, v, weight of the c - 1 tokens before
  int64_t window;

  struct Pass {
    Tensor keys, values, weights;  // of all m' tokens
    Tensor error, e;
    Momentum rates;
    MomentumLayer layer;
    Tensor output;
    Tensors state;
  };

  Pass forward(const Tensors& in, const Tensors& state) const {
    const Tensor &q = in[0], &rate = in[3], &matrix = state[0];
    Pass p;
    p.keys = stacked(state[2], in[1]);
    p.values = stacked(state[3], in[2]);
    p.weights = stacked(state[4], in[4]);
    p.error = minus(matmul(p.keys, matrix), p.values);
    p.e = times(p.weights, p.error);
    p.rates = momentum(in[5], in[6], times(rate, band(rate)));
    p.layer = momentum_layer(q, p.keys, p.e, matrix, state[1], p.rates);
    p.output = p.layer.output;
    p.state = {p.layer.weight, p.layer.momentum, latest(p.keys), latest(p.values), latest(p.weights)};
    return p;
  }

  Tensors backward(const Tensors& in, const Tensors& state, const Pass& p, const Tensor& doutput,
                   Tensors& dstate) const {
    const Tensor &q = in[0], &rate = in[3], &matrix = state[0];
    MomentumGradients drates(p.rates);
    DescentGradients d = momentum_layer_backward(p.layer, q, p.keys, p.e, matrix, state[1], p.rates, doutput,
                                                 dstate[0], dstate[1], drates);
    const Tensor derror = times(p.weights, d.e);
    add_matmul(d.x, 1, derror, transposed(matrix));
    add_matmul(dstate[0], 1, transposed(p.keys), derror);
    const MomentumInputGradients dgates = momentum_backward(p.rates, drates);
    return {d.q,
            split(d.x, dstate[2]),
            split(times(-1, derror), dstate[3]),
            sum_of_columns(times(dgates.applied, band(rate))),
            split(sum_of_columns(times(d.e, p.error)), dstate[4]),
            dgates.log_keep,
            dgates.log_momentum};
  }

  /// [m, m']: 1 where a token is in the window of a step.
  Tensor band(const Tensor& rate) const {
    const int64_t m = rate.shape()[2], all = window - 1 + m;
    std::vector<double> values(m * all, 0);
    for (int64_t t = 0; t < m; ++t) std::fill_n(values.begin() + t * all + t, window, 1);
    return Tensor::from(values, {m, all}).to(rate.dtype()).to(rate.device());
  }
  /// The last c - 1 of m' tokens.
  Tensor latest(const Tensor& x) const { return rows(x, x.shape()[2] - (window - 1), window - 1); }
  /// The gradients of the chunk's tokens from those of all m'. dlatest is what later chunks owe to the last c
  /// - 1 of these, and becomes what is owed to the c - 1 before the chunk.
  Tensor split(const Tensor& dx, Tensor& dlatest) const {
    const int64_t before = window - 1, m = dx.shape()[2] - before;
    Tensor total = dx.clone(), last = total.narrow(2, m, before);
    last.copy_from(plus(last.contiguous(), dlatest));
    dlatest = rows(total, 0, before);
    return rows(total, before, m);
  }
};

void check_shapes(const Shape& q, const Shape& k, const Shape& v, const AtlasGates& gates,
                  const Shape& matrix, const Shape& momentum, const AtlasOptions& options) {
  check_usage(options.chunk > 0 && options.window > 0, "[atlas] window ", options.window, ", chunk ",
              options.chunk, "; allowed: 1 or more");
  check(q.rank() == 4 && k == q && v.rank() == 4 && v.drop_last() == q.drop_last(), "[atlas] q ", q, ", k ",
        k, ", v ", v, ": they must be [B, T, H, dk], the same, and [B, T, H, dv]");
  for (const Variable& gate : {gates.rate, gates.weight, gates.log_keep, gates.log_momentum})
    check(gate.shape() == q.drop_last(), "[atlas] a gate ", gate.shape(), "; allowed: ", q.drop_last());
  const Shape wanted{q[0], q[2], q[3], v[3]};
  check(matrix == wanted && momentum == wanted, "[atlas] matrix ", matrix, ", momentum ", momentum,
        "; allowed: ", wanted);
}

}  // namespace

Atlas atlas(const Variable& q, const Variable& k, const Variable& v, const AtlasGates& gates,
            const Variable& matrix, const Variable& momentum, const AtlasOptions& options) {
  check_shapes(q.shape(), k.shape(), v.shape(), gates, matrix.shape(), momentum.shape(), options);
  const Tensors memory = atlas_memory(matrix.value(), momentum.value(), options);
  const auto out = apply(Chunked<AtlasCore>{{options.window}, options.chunk}, q, k, v, gates.rate,
                         gates.weight, gates.log_keep, gates.log_momentum, matrix, momentum,
                         Variable(memory[2]), Variable(memory[3]), Variable(memory[4]));
  return {.output = out[0], .matrix = out[1], .momentum = out[2]};
}

Tensor atlas_read_on(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rate,
                     const Tensor& weight, const Tensor& log_keep, const Tensor& log_momentum,
                     const AtlasOptions& options, int64_t position, Tensors& memory) {
  return read_on(AtlasCore{options.window}, options.chunk, {q, k, v, rate, weight, log_keep, log_momentum},
                 position, memory);
}

Tensors atlas_memory(const Tensor& matrix, const Tensor& momentum, const AtlasOptions& options) {
  const Shape& shape = matrix.shape();
  const int64_t batch = shape[0], heads = shape[1], before = options.window - 1;
  const auto zeros = [&](const Shape& wanted) {
    return Tensor::zeros(wanted, matrix.dtype(), matrix.device());
  };
  const Shape gate{batch, options.chunk, heads};
  return {matrix,
          momentum,
          zeros({batch, heads, before, shape[2]}),
          zeros({batch, heads, before, shape[3]}),
          zeros({batch, heads, before, 1}),
          zeros({batch, options.chunk, heads, shape[2]}),
          zeros({batch, options.chunk, heads, shape[3]}),
          zeros(gate),
          zeros(gate),
          zeros(gate),
          zeros(gate)};
}

std::vector<GradCase> atlas_cases(CaseInputs& inputs) {
  const auto make = [&](std::string name, int64_t length, const AtlasOptions& options) {
    const Shape gate{2, length, 2};
    GradCase result{
        "atlas, " + std::move(name),
        {inputs.normal("q", {2, length, 2, 3}, 0.7), inputs.normal("k", {2, length, 2, 3}, 0.7),
         inputs.normal("v", {2, length, 2, 4}), inputs.uniform("rate", gate, 0.02, 0.3),
         inputs.uniform("weight", gate, 0.2, 1), inputs.uniform("log_keep", gate, -1, -0.1),
         inputs.uniform("log_momentum", gate, -2, -0.1), inputs.normal("matrix", {2, 2, 3, 4}, 0.5),
         inputs.normal("momentum", {2, 2, 3, 4}, 0.2)},
        {}};
    result.function = [options](const std::vector<Variable>& in) {
      const Atlas r = atlas(in[0], in[1], in[2], {in[3], in[4], in[5], in[6]}, in[7], in[8], options);
      return std::vector{r.output, r.matrix, r.momentum};
    };
    return result;
  };
  return {make("a window longer than a chunk", 7, {.window = 4, .chunk = 3}),
          make("a window of two, a chunk of one token", 9, {.window = 2, .chunk = 1}),
          make("a window of one", 5, {.window = 1, .chunk = 4})};
}

}  // namespace mixgrad
