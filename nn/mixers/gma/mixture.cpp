#include "nn/mixers/gma/mixture.h"

#include <cmath>

namespace mixgrad {

namespace {

/// Points drawn uniformly on the sphere of radius sqrt(dr): where RMS-normalised routing vectors live, so
/// that no component starts far from the data.
Tensor means_on_sphere(const Shape& shape, Initialiser& initialiser) {
  Tensor means = normal(shape, 1, initialiser.generator(), DType::float64);
  auto* values = means.data<double>();
  const int64_t dim = shape[-1];
  for (int64_t row = 0; row < shape.rows(); ++row, values += dim) {
    double squares = 0;
    for (int64_t m = 0; m < dim; ++m) squares += values[m] * values[m];
    for (int64_t m = 0; m < dim; ++m) values[m] *= std::sqrt(static_cast<double>(dim) / squares);
  }
  return means;
}

}  // namespace

GaussianMixture::GaussianMixture(const MixerConfig& config, Initialiser& initialiser) {
  const int64_t components = config.integer_option("components");
  const int64_t routing = config.integer_option("routing");
  const Shape shape{config.heads, components, routing};
  mean = initialiser.values(means_on_sphere(shape, initialiser));
  // On that sphere the scores of two components spread by sqrt(dr) / variance: set that.
  const double variance = std::sqrt(static_cast<double>(routing)) / config.option("sharpness");
  // The inverse of softplus, in the form that can't overflow.
  omega = initialiser.constant(shape, variance + std::log(-std::expm1(-variance)));
  alpha = initialiser.constant({config.heads, components}, 0);
}

GmmParameters GaussianMixture::parameters() {
  return parameters_.get({mean, omega, alpha}, [&] {
    const GmmParameters mixture = gmm_parameters(omega, alpha, 1e-4);
    return recording() ? mixture : gmm_prepared(mean, mixture);
  });
}

}  // namespace mixgrad
