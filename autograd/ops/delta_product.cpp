#include "autograd/ops/delta_product.h"

#include "autograd/documents.h"
#include "autograd/op.h"
#include "autograd/ops/elementwise.h"

namespace mixgrad {

namespace {

/// Tokens become groups of `steps` tokens, [B, T, ...] to [B, T steps, ...]: token t is step `step` of group
/// t, and all other steps are 0.
Tensor spread(const Tensor& x, int64_t steps, int64_t step) {
  Shape shape = x.shape();
  const int64_t tokens = shape[0] * shape[1], size = tokens == 0 ? 0 : shape.elements() / tokens;
  Tensor wide = Tensor::zeros({tokens, steps, size}, x.dtype(), x.device());
  wide.narrow(1, step, 1).copy_from(x.contiguous().reshape({tokens, 1, size}));
  shape[1] *= steps;
  return wide.reshape(shape);
}

/// One step of each group of tokens, [B, T steps, ...] to [B, T, ...].
Tensor pick(const Tensor& x, int64_t steps, int64_t step) {
  Shape shape = x.shape();
  shape[1] /= steps;
  const int64_t tokens = shape[0] * shape[1], size = tokens == 0 ? 0 : shape.elements() / tokens;
  return x.contiguous().reshape({tokens, steps, size}).narrow(1, step, 1).contiguous().reshape(shape);
}

/// Each is the other's transpose, and so its backward. Nothing is saved.
struct SpreadSteps {
  static constexpr std::string_view name = "spread_steps";
  int64_t steps, step;

  Tensor forward(Context&, const Tensor& x) const { return spread(x, steps, step); }
  Tensors backward(const Context&, const Tensor& dy) const { return {pick(dy, steps, step)}; }
};

struct PickStep {
  static constexpr std::string_view name = "pick_step";
  int64_t steps, step;

  Tensor forward(Context&, const Tensor& x) const { return pick(x, steps, step); }
  Tensors backward(const Context&, const Tensor& dy) const { return {spread(dy, steps, step)}; }
};

/// [B, T, n, ...] to [B, T n, ...].
Variable one_after_the_other(const Variable& x) {
  Shape shape{x.shape()[0], x.shape()[1] * x.shape()[2]};
  for (int axis = 3; axis < x.shape().rank(); ++axis) shape.push_back(x.shape()[axis]);
  return reshape(x, shape);
}

void check_shapes(const Shape& q, const Shape& k, const Shape& v, const Shape& beta,
                  const Variable& log_decay) {
  const auto has_steps = [&](const Shape& x, int rank) {
    return x.rank() == rank && x[0] == q[0] && x[1] == q[1] && x[2] == k[2];
  };
  check(
      q.rank() == 4 && k.rank() == 5 && k[2] > 0 && has_steps(k, 5) && has_steps(v, 5) && has_steps(beta, 4),
      "[delta_product] q ", q, ", k ", k, ", v ", v, ", beta ", beta,
      ": they must be [B, T, Hk, dk], [B, T, n, Hk, dk], [B, T, n, H, dv] and [B, T, n, H]");
  check(!log_decay.defined() ||
            (log_decay.shape().rank() >= 3 && log_decay.shape()[0] == q[0] && log_decay.shape()[1] == q[1]),
        "[delta_product] log_decay ", log_decay.defined() ? log_decay.shape() : Shape{},
        ": it must be [B, T, H] or [B, T, H, dk]");
}

}  // namespace

Recurrence delta_product(const Variable& q, const Variable& k, const Variable& v, const Variable& beta,
                         const DeltaRuleOptions& options, const Variable& log_decay,
                         const Variable& initial_state) {
  check(beta.defined(), "[delta_product] beta is missing");
  check_shapes(q.shape(), k.shape(), v.shape(), beta.shape(), log_decay);
  check_documents("delta_product", options.documents, q.shape()[0], q.shape()[1]);
  const int64_t steps = k.shape()[2];
  // Forgetting, and the begin of a document, come with the first step, reading with the last.
  const Variable gates = log_decay.defined() ? apply(SpreadSteps{steps, 0}, log_decay) : Variable();
  const Variable reads = apply(SpreadSteps{steps, steps - 1}, q);
  DeltaRuleOptions by_step = options;
  if (options.documents.defined()) by_step.documents = spread(options.documents, steps, 0);
  Recurrence r = delta_rule(reads, one_after_the_other(k), one_after_the_other(v), one_after_the_other(beta),
                            by_step, gates, initial_state);
  r.output = apply(PickStep{steps, steps - 1}, r.output);
  return r;
}

std::vector<GradCase> delta_product_cases(CaseInputs& inputs) {
  const auto make = [&](std::string name, int64_t steps, const Shape& gate) {
    GradCase result{
        std::move(name),
        {inputs.normal("q", {2, 5, 2, 3}), inputs.normal("k", {2, 5, steps, 2, 3}),
         inputs.normal("v", {2, 5, steps, 2, 4}), inputs.uniform("beta", {2, 5, steps, 2}, 0, 1),
         inputs.uniform("log_decay", gate, -2, -0.1), inputs.normal("initial_state", {2, 2, 3, 4})},
        {}};
    result.function = [](const std::vector<Variable>& in) {
      const DeltaRuleOptions options{.scale = 0.5, .chunk = 4};
      const Recurrence r = delta_product(in[0], in[1], in[2], in[3], options, in[4], in[5]);
      return std::vector{r.output, r.state};
    };
    return result;
  };
  return {make("delta product, two steps", 2, {2, 5, 2}),
          make("delta product, three steps, gate for each channel", 3, {2, 5, 2, 3})};
}

}  // namespace mixgrad
