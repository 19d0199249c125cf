#include "autograd/ops/gmm.h"

#include <utility>

#include "autograd/op.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/softmax.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/gmm.h"

namespace mixgrad {

namespace {

GmmShape gmm_shape(const Shape& x, const Shape& mean) {
  const int64_t heads = mean.rank() == 3 ? mean[0] : 1;
  const int64_t vectors = x.rows();
  return {.rows = heads > 0 ? vectors / heads : 0, .heads = heads, .components = mean[-2], .dim = mean[-1]};
}

/// x's shape with one entry for each component at its end.
Shape scores_shape(const Shape& x, const Shape& mean) {
  Shape shape = x;
  shape[-1] = mean[-2];
  return shape;
}

/// s_k = -1/2 sum over m of (log 2 pi + log var_km + (x_m - mean_km)^2 / var_km).
/// dx_m = -sum over k of ds_k (x_m - mean_km) / var_km; over all rows, dmean_km = sum of ds_k (x_m - mean_km)
/// / var_km and dvar_km = 1/2 sum of ds_k ((x_m - mean_km)^2 / var_km - 1) / var_km.
struct GmmLogDensity {
  static constexpr std::string_view name = "gmm_log_density";

  Tensor forward(Context& context, const Tensor& x, const Tensor& mean, const Tensor& variance) const {
    context.save(x);
    context.save(mean);
    context.save(variance);
    Tensor score = Tensor::empty(scores_shape(x.shape(), mean.shape()), x.dtype(), x.device());
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      gmm_log_density_forward(device, gmm_shape(x.shape(), mean.shape()), x.data<T>(), mean.data<T>(),
                              variance.data<T>(), score.data<T>());
    });
    return score;
  }

  Tensors backward(const Context& context, const Tensor& dscore) const {
    const Tensor& x = context.saved(0);
    const Tensor& mean = context.saved(1);
    const Tensor& variance = context.saved(2);
    Tensor dx = empty_like(x);
    Tensor dmean = empty_like(mean);
    Tensor dvariance = empty_like(variance);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      gmm_log_density_backward(device, gmm_shape(x.shape(), mean.shape()), x.data<T>(), mean.data<T>(),
                               variance.data<T>(), dscore.data<T>(), dx.data<T>(), dmean.data<T>(),
                               dvariance.data<T>());
    });
    return {dx, dmean, dvariance};
  }
};

/// gamma = softmax(log_prior + s), s as above. With ds = gamma (dgamma - gamma . dgamma) the gradients are
/// those above, and dlog_prior is the sum of ds over rows.
struct GmmPosterior {
  static constexpr std::string_view name = "gmm_posterior";
  Tensor prepared;  // may be undefined; never on a GPU

  Tensor forward(Context& context, const Tensor& x, const Tensor& mean, const Tensor& variance,
                 const Tensor& log_prior) const {
    Tensor gamma = Tensor::empty(scores_shape(x.shape(), mean.shape()), x.dtype(), x.device());
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      const GmmShape shape = gmm_shape(x.shape(), mean.shape());
      if (prepared.defined()) {
        gmm_responsibilities_prepared(Cpu{}, shape, x.data<T>(), mean.data<T>(), variance.data<T>(),
                                      prepared.data<T>(), gamma.data<T>());
      } else {
        gmm_responsibilities_forward(device, shape, x.data<T>(), mean.data<T>(), variance.data<T>(),
                                     log_prior.data<T>(), gamma.data<T>());
      }
    });
    context.save(x);
    context.save(mean);
    context.save(variance);
    context.save(gamma);
    return gamma;
  }

  Tensors backward(const Context& context, const Tensor& dgamma) const {
    const Tensor& x = context.saved(0);
    const Tensor& mean = context.saved(1);
    const Tensor& variance = context.saved(2);
    const Tensor& gamma = context.saved(3);
    Tensor dx = empty_like(x);
    Tensor dmean = empty_like(mean);
    Tensor dvariance = empty_like(variance);
    Tensor dlog_prior = Tensor::empty(mean.shape().drop_last(), x.dtype(), x.device());
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      gmm_responsibilities_backward(device, gmm_shape(x.shape(), mean.shape()), x.data<T>(), mean.data<T>(),
                                    variance.data<T>(), gamma.data<T>(), dgamma.data<T>(), dx.data<T>(),
                                    dmean.data<T>(), dvariance.data<T>(), dlog_prior.data<T>());
    });
    return {dx, dmean, dvariance, dlog_prior};
  }
};

void check_mixture(const char* op, const Shape& x, const Shape& mean, const Shape& variance) {
  const bool per_head = mean.rank() == 3;
  check((per_head || mean.rank() == 2) && mean[-2] > 0 && mean[-1] > 0, "[", op, "] mean ", mean,
        "; allowed: [K, dr] or [H, K, dr] with K and dr above 0");
  check(variance == mean, "[", op, "] variance ", variance, " for mean ", mean, ": their shapes must agree");
  check(x.rank() >= (per_head ? 2 : 1) && x[-1] == mean[-1] && (!per_head || x[-2] == mean[0]), "[", op,
        "] x ", x, " for mean ", mean, ": x must be ", per_head ? "[..., H, dr]" : "[..., dr]");
}

}  // namespace

Variable gmm_log_density(const Variable& x, const Variable& mean, const Variable& variance) {
  check_mixture("gmm_log_density", x.shape(), mean.shape(), variance.shape());
  return apply(GmmLogDensity{}, x, mean, variance);
}

Variable gmm_posterior(const Variable& x, const Variable& mean, const GmmParameters& mixture) {
  const auto& [variance, log_prior, prepared] = mixture;
  check_mixture("gmm_posterior", x.shape(), mean.shape(), variance.shape());
  check(log_prior.shape() == mean.shape().drop_last(), "[gmm_posterior] log_prior ", log_prior.shape(),
        " for mean ", mean.shape(), ": it must have one entry a component");
  return apply(GmmPosterior{prepared}, x, mean, variance, log_prior);
}

Variable gmm_posterior(const Variable& x, const Variable& mean, const Variable& variance,
                       const Variable& log_prior) {
  return gmm_posterior(x, mean, {.variance = variance, .log_prior = log_prior});
}

GmmParameters gmm_prepared(const Variable& mean, GmmParameters mixture) {
  const Tensor& means = mean.value();
  if (means.device().kind != Device::Kind::cpu) return mixture;
  dispatch(means, [&](auto, auto type) {
    using T = decltype(type);
    const GmmShape shape = gmm_shape(means.shape(), means.shape());  // rows don't matter
    mixture.prepared = Tensor::empty({gmm_prepared_size<T>(Cpu{}, shape)}, means.dtype());
    gmm_prepare(Cpu{}, shape, means.data<T>(), std::as_const(mixture).variance.value().data<T>(),
                std::as_const(mixture).log_prior.value().data<T>(), mixture.prepared.data<T>());
  });
  return mixture;
}

GmmParameters gmm_parameters(const Variable& omega, const Variable& alpha, double floor) {
  check_usage(floor > 0, "[gmm_parameters] variance floor ", floor, "; allowed: above 0");
  return {.variance = add_scalar(softplus(omega), floor), .log_prior = log_softmax(alpha)};
}

Variable gmm_responsibilities(const Variable& x, const Variable& mean, const Variable& omega,
                              const Variable& alpha, double floor) {
  return gmm_posterior(x, mean, gmm_parameters(omega, alpha, floor));
}

std::vector<GradCase> gmm_cases(CaseInputs& inputs) {
  using Inputs = const std::vector<Variable>&;
  return {
      {"gmm_log_density of one mixture",
       {inputs.normal("x", {2, 3, 4}), inputs.normal("mean", {5, 4}),
        inputs.uniform("variance", {5, 4}, 0.3, 2)},
       [](Inputs in) { return std::vector{gmm_log_density(in[0], in[1], in[2])}; }},
      {"gmm_log_density of two heads",
       {inputs.normal("x", {4, 2, 1}), inputs.normal("mean", {2, 3, 1}),
        inputs.uniform("variance", {2, 3, 1}, 0.3, 2)},
       [](Inputs in) { return std::vector{gmm_log_density(in[0], in[1], in[2])}; }},
      {"gmm_log_density, components narrow and wide beside their distance",
       {inputs.normal("x", {6, 3}), inputs.normal("mean", {5, 3}, 20),
        inputs.uniform("variance", {5, 3}, 0.5, 4)},
       [](Inputs in) { return std::vector{gmm_log_density(in[0], in[1], in[2])}; }},
      {"gmm_posterior",
       {inputs.normal("x", {2, 4, 3, 2}), inputs.normal("mean", {3, 5, 2}, 0.8),
        inputs.uniform("variance", {3, 5, 2}, 0.3, 2), inputs.normal("log_prior", {3, 5})},
       [](Inputs in) { return std::vector{gmm_posterior(in[0], in[1], in[2], in[3])}; }},
      {"gmm_posterior over more rows than one block",
       {inputs.normal("x", {131, 1}), inputs.normal("mean", {2, 1}, 0.8),
        inputs.uniform("variance", {2, 1}, 0.3, 2), inputs.normal("log_prior", {2})},
       [](Inputs in) { return std::vector{gmm_posterior(in[0], in[1], in[2], in[3])}; }},
      {"gmm_responsibilities",
       {inputs.normal("x", {2, 3, 2, 3}), inputs.normal("mean", {2, 4, 3}, 0.8),
        inputs.normal("omega", {2, 4, 3}), inputs.normal("alpha", {2, 4})},
       [](Inputs in) { return std::vector{gmm_responsibilities(in[0], in[1], in[2], in[3], 0.1)}; }},
  };
}

}  // namespace mixgrad
