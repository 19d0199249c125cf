#include "autograd/ops/longhorn.h"

#include "autograd/op.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/longhorn.h"

namespace mixgrad {

namespace {

/// rate = beta / (1 + beta |k|^2); derivatives in tensor/kernels/longhorn.h. Saved: k, beta.
struct LonghornRate {
  static constexpr std::string_view name = "longhorn_rate";

  static LonghornShape shape_of(const Tensor& k, const Tensor& beta) {
    return {.tokens = beta.shape()[0] * beta.shape()[1],
            .heads = beta.shape()[2],
            .key_heads = k.shape()[2],
            .key_dim = k.shape()[3]};
  }

  Tensor forward(Context& context, const Tensor& k_given, const Tensor& beta_given) const {
    const Tensor k = k_given.contiguous(), beta = beta_given.contiguous();
    Tensor rate = empty_like(beta);
    dispatch(k, [&](auto device, auto type) {
      using T = decltype(type);
      longhorn_rate_forward<T>(device, shape_of(k, beta), k.data<T>(), beta.data<T>(), rate.data<T>());
    });
    context.save(k);
    context.save(beta);
    return rate;
  }

  Tensors backward(const Context& context, const Tensor& drate) const {
    const Tensor &k = context.saved(0), &beta = context.saved(1);
    Tensor dk = empty_like(k), dbeta = empty_like(beta);
    dispatch(k, [&](auto device, auto type) {
      using T = decltype(type);
      longhorn_rate_backward<T>(device, shape_of(k, beta), k.data<T>(), beta.data<T>(), drate.data<T>(),
                                dk.data<T>(), dbeta.data<T>());
    });
    return {dk, dbeta};
  }
};

}  // namespace

Variable longhorn_rate(const Variable& k, const Variable& beta) {
  check(beta.defined(), "[longhorn] beta is missing");
  check(k.shape().rank() == 4 && beta.shape().rank() == 3 && beta.shape()[0] == k.shape()[0] &&
            beta.shape()[1] == k.shape()[1] && k.shape()[2] > 0 && beta.shape()[2] % k.shape()[2] == 0,
        "[longhorn] k ", k.shape(), ", beta ", beta.shape(),
        ": they must be [B, T, Hk, dk] and [B, T, H], where Hk divides H");
  return apply(LonghornRate{}, k, beta);
}

Recurrence longhorn(const Variable& q, const Variable& k, const Variable& v, const Variable& beta,
                    const DeltaRuleOptions& options, const Variable& initial_state) {
  return delta_rule(q, k, v, longhorn_rate(k, beta), options, {}, initial_state);
}

std::vector<GradCase> longhorn_cases(CaseInputs& inputs) {
  GradCase grouped{
      "longhorn, with states, grouped heads",
      {inputs.normal("q", {2, 6, 2, 3}), inputs.normal("k", {2, 6, 2, 3}), inputs.normal("v", {2, 6, 4, 2}),
       inputs.uniform("beta", {2, 6, 4}, 0, 3), inputs.normal("initial_state", {2, 4, 3, 2})},
      {}};
  grouped.function = [](const std::vector<Variable>& in) {
    const DeltaRuleOptions options{.scale = 0.5, .chunk = 4};
    const Recurrence r = longhorn(in[0], in[1], in[2], in[3], options, in[4]);
    return std::vector{r.output, r.state};
  };
  return {grouped};
}

}  // namespace mixgrad
