#include "autograd/learning/norm_regression.h"

#include "tensor/kernels/norm.h"

namespace mixgrad {

namespace {

/// J h: the backward of the norm.
Tensor through_norm(const NormRegression& f, const Tensor& h) {
  Tensor u = empty_like(h);
  dispatch(h, [&](auto device, auto type) {
    using T = decltype(type);
    const T* no_weight = nullptr;
    T* not_wanted = nullptr;
    layer_norm_backward(device, h.shape().rows(), h.shape().columns(), f.z.data<T>(), no_weight,
                        f.mean.data<T>(), f.inverse_deviation.data<T>(), h.data<T>(), u.data<T>(), not_wanted,
                        not_wanted);
  });
  return u;
}

/// The mean of a (.) b along each row, [B, H, m, 1].
Tensor mean_product(const Tensor& a, const Tensor& b) {
  return times(1 / static_cast<double>(a.shape()[-1]), sum_of_columns(times(a, b)));
}

}  // namespace

NormRegression norm_regression(const Tensor& z, const Tensor& target, const Tensor& gamma, const Tensor& beta,
                               double eps) {
  Shape of_rows = z.shape();
  of_rows[-1] = 1;
  NormRegression f{z, empty_if(true, of_rows, z), empty_if(true, of_rows, z), empty_like(z), {}, {}};
  dispatch(z, [&](auto device, auto type) {
    using T = decltype(type);
    const T* none = nullptr;
    layer_norm_forward(device, z.shape().rows(), z.shape().columns(), eps, z.data<T>(), none, none,
                       f.normalised.data<T>(), f.mean.data<T>(), f.inverse_deviation.data<T>());
  });
  f.residual = minus(plus(times(gamma, f.normalised), beta), target);
  f.gradient = through_norm(f, times(gamma, f.residual));
  return f;
}

NormRegressionGradients norm_regression_backward(const NormRegression& f, const Tensor& gamma,
                                                 const Tensor& du) {
  const Tensor h = times(gamma, f.residual), &n = f.normalised;
  const Tensor dh = through_norm(f, du), weighted = times(gamma, dh);
  const Tensor dn =
      minus(times(gamma, weighted),
            times(f.inverse_deviation, plus(times(mean_product(h, n), du), times(mean_product(n, du), h))));
  const Tensor dz =
      minus(through_norm(f, dn), times(times(f.inverse_deviation, mean_product(du, f.gradient)), n));
  const Tensor dgamma = times(dh, plus(times(gamma, n), f.residual));
  return {.z = dz,
          .target = times(-1, weighted),
          .gamma = summed_to(gamma.shape(), sum_of_rows(dgamma)),
          .beta = summed_to(gamma.shape(), sum_of_rows(weighted))};
}

}  // namespace mixgrad
