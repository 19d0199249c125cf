#include "autograd/ops/mesa.h"

#include "autograd/arithmetic.h"
#include "autograd/documents.h"
#include "autograd/op.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/recurrence.h"
#include "tensor/kernels/conjugate_gradient.h"
#include "tensor/kernels/recurrence.h"

namespace mixgrad {

namespace {

/// x_t = (H_t + diag(lambda))^{-1} q_t with H_t = e^{g_t} H_{t-1} + k_t^T w_t, symmetric and positive
/// semi-definite. With dx the gradient of x,
///   y_t = (H_t + diag(lambda))^{-1} dx_t      dq = y      dlambda = -sum over t of y_t (.) x_t
/// and dH_t = -y_t^T x_t. The same dH_t comes of a recurrence with outputs y_t H_t whose gradients are -x_t,
/// so dk, dw, dg and dH_0 are that recurrence's. Saved: the inputs but q, and x.
struct MesaSolve {
  static constexpr std::string_view name = "mesa_solve";
  RecurrenceShape shape;  // of the recurrence that makes H
  ChunkPlan plan;
  bool final_state;

  /// H_t and lambda.
  struct System {
    const Tensor &k, &w, &log_decay, &lambda, &initial_state;

    template <class T>
    RecurrenceInputs<T> read_by(const Tensor& q) const {
      return {heads<T>(q), heads<T>(k),
              heads<T>(w), log_decay.data<T>(),
              nullptr,     initial_state.data_or_null<T>(),
              nullptr};
    }
  };

  Tensors forward(Context& context, const Tensor& q, const Tensor& k, const Tensor& w,
                  const Tensor& log_decay, const Tensor& lambda, const Tensor& initial_state) const {
    Tensor state = empty_if(final_state, state_shape(), q), states = empty_if(true, states_shape(), q);
    const Tensor x = solve({k, w, log_decay, lambda, initial_state}, q, state, states);
    for (const Tensor& tensor : {k, w, log_decay, lambda, initial_state, x}) context.save(tensor);
    return final_state ? Tensors{x, state} : Tensors{x};
  }

  Tensors backward(const Context& context, const Tensors& gradients) const {
    const Tensor &k = context.saved(0), &w = context.saved(1), &log_decay = context.saved(2);
    const Tensor &lambda = context.saved(3), &initial_state = context.saved(4), &x = context.saved(5);
    const System system{k, w, log_decay, lambda, initial_state};
    const Tensor dx = gradients[0].defined() ? gradients[0] : zeros_like(x);
    const Tensor dstate = final_state ? gradients[1] : Tensor();
    Tensor not_wanted, states = empty_if(true, states_shape(), x);
    const Tensor y = solve(system, dx, not_wanted, states);

    const Tensor dread = times(-1, x), products = times(y, dread);
    Tensor dqueries = empty_like(x);  // the recurrence's, of no meaning here
    Tensor dk = empty_like(k), dw = empty_like(w), dlog_decay = empty_like(log_decay);
    Tensor dinitial_state = empty_if(context.wants(5), state_shape(), x), dlambda = empty_like(lambda);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      recurrence_backward<T>(device, shape, plan, system.read_by<T>(y),
                             {{}, nullptr, nullptr, nullptr, states.data<T>(), nullptr, {}},
                             {heads<T>(dread), dstate.data_or_null<T>(), nullptr},
                             {heads<T>(dqueries), heads<T>(dk), heads<T>(dw), dlog_decay.data<T>(), nullptr,
                              dinitial_state.data_or_null<T>(), nullptr});
      bias_backward(device, shape.batch * shape.keys, lambda.elements(), products.data<T>(),
                    dlambda.data<T>());
    });
    return {y, dk, dw, dlog_decay, dlambda, dinitial_state};
  }

  /// The solutions for the right sides b [B, T, H, dk]. Leaves H after the last token in state, if defined,
  /// and between chunks in states.
  Tensor solve(const System& system, const Tensor& b, Tensor& state, Tensor& states) const {
    const LinearSystems systems{.rows = b.shape().rows(), .columns = shape.key_dim, .heads = shape.heads};
    const int64_t most_rounds = 2 * shape.key_dim + 8;
    Tensor x = empty_like(b), residual = empty_like(b), direction = empty_like(b), product = empty_like(b);
    Tensor squares = empty_if(true, {systems.rows}, b), limits = empty_like(squares);
    dispatch(b, [&](auto device, auto type) {
      using T = decltype(type);
      const ConjugateGradients<T> cg{x.data<T>(), residual.data<T>(), direction.data<T>(), squares.data<T>(),
                                     limits.data<T>()};
      conjugate_gradient_start(device, systems, b.data<T>(), cg);
      bool goes_on = true;
      for (int64_t round = 0; goes_on && round < most_rounds; ++round) {
        recurrence_forward<T>(
            device, shape, plan, system.read_by<T>(direction),
            {heads<T>(product), state.data_or_null<T>(), nullptr, nullptr, states.data<T>(), nullptr, {}});
        goes_on = conjugate_gradient_step(device, systems, system.lambda.data<T>(), product.data<T>(), cg);
      }
    });
    return x;
  }

  Shape state_shape() const { return {shape.batch, shape.heads, shape.key_dim, shape.key_dim}; }
  Shape states_shape() const { return {plan.states, shape.heads, shape.key_dim, shape.key_dim}; }
};

void check_shapes(const Shape& q, const Shape& k, const Shape& v, const Shape& log_decay, const Shape& beta,
                  const Shape& lambda) {
  check(q.rank() == 4 && k == q && v.rank() == 4 && v.drop_last() == q.drop_last() &&
            log_decay == q.drop_last() && beta == log_decay && lambda == Shape{q[2], q[3]},
        "[mesa] q ", q, ", k ", k, ", v ", v, ", log_decay ", log_decay, ", beta ", beta, ", lambda ", lambda,
        ": they must be [B, T, H, dk], the same, [B, T, H, dv], [B, T, H], the same, and [H, dk]");
}

}  // namespace

Mesa mesa(const Variable& q, const Variable& k, const Variable& v, const Variable& log_decay,
          const Variable& beta, const Variable& lambda, const MesaOptions& options,
          const Variable& initial_key_state, const Variable& initial_value_state) {
  check_shapes(q.shape(), k.shape(), v.shape(), log_decay.shape(), beta.shape(), lambda.shape());
  check_usage(options.chunk > 0, "[mesa] chunk ", options.chunk, "; allowed: 1 or more");
  const int64_t batch = q.shape()[0], length = q.shape()[1], heads = q.shape()[2], dk = q.shape()[3];
  const Shape key_state{batch, heads, dk, dk};
  check(!initial_key_state.defined() || initial_key_state.shape() == key_state, "[mesa] initial_key_state ",
        initial_key_state.shape(), "; allowed: ", key_state);
  check_documents("mesa", options.documents, batch, length);

  const Variable rates = reshape(beta, {batch, length, heads, 1});
  const RecurrenceShape shape{.batch = batch,
                              .queries = length,
                              .keys = length,
                              .heads = heads,
                              .key_heads = heads,
                              .key_dim = dk,
                              .value_dim = dk};
  const Tensor documents = options.documents.to(Device{});
  const ChunkPlan plan = chunk_plan(batch, length, options.chunk, documents.data_or_null<int32_t>());
  const auto solved = apply(MesaSolve{shape, plan, options.final_state}, q, k, multiply(k, rates), log_decay,
                            lambda, initial_key_state);
  const Recurrence read =
      recurrence(solved[0], k, multiply(v, rates),
                 {.chunk = options.chunk, .final_state = options.final_state, .documents = options.documents},
                 log_decay, initial_value_state);
  return {.output = read.output,
          .key_state = options.final_state ? solved[1] : Variable(),
          .value_state = read.state};
}

std::vector<GradCase> mesa_cases(CaseInputs& inputs) {
  const auto make = [&](std::string name, bool states, const MesaOptions& options) {
    GradCase result{std::move(name),
                    {inputs.normal("q", {2, 7, 2, 3}), inputs.normal("k", {2, 7, 2, 3}),
                     inputs.normal("v", {2, 7, 2, 4}), inputs.uniform("log_decay", {2, 7, 2}, -2, -0.1),
                     inputs.uniform("beta", {2, 7, 2}, 0.1, 1), inputs.uniform("lambda", {2, 3}, 0.3, 1.5)},
                    {}};
    if (states) {
      result.inputs.push_back(inputs.normal("earlier_keys", {2, 4, 2, 3}));
      result.inputs.push_back(inputs.normal("initial_value_state", {2, 2, 3, 4}));
    }
    result.function = [states, options](const std::vector<Variable>& in) {
      Variable key_state, value_state;
      if (states) {
        key_state = recurrence(in[6], in[6], in[6], {}).state;  // symmetric, wherever the checker moves them
        value_state = in[7];
      }
      const Mesa m = mesa(in[0], in[1], in[2], in[3], in[4], in[5], options, key_state, value_state);
      std::vector<Variable> outputs = {m.output};
      if (options.final_state) outputs.insert(outputs.end(), {m.key_state, m.value_state});
      return outputs;
    };
    return result;
  };
  MesaOptions packed{.chunk = 4};
  packed.documents = Tensor::from(std::vector<int32_t>{0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0}, {2, 7});
  return {make("mesa, output alone", false, {.chunk = 4, .final_state = false}),
          make("mesa, with states", true, {.chunk = 3}), make("mesa, documents", true, packed)};
}

}  // namespace mixgrad
