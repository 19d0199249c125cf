#include "nn/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "autograd/profile.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/optimizer.h"

namespace mixgrad {

AdamW::AdamW(std::vector<Parameter> parameters, const AdamWConfig& config)
    : parameters_(std::move(parameters)), config_(config) {
  for (const Parameter& parameter : parameters_) {
    m_.push_back(zeros_like(parameter.variable->value()));
    v_.push_back(zeros_like(parameter.variable->value()));
  }
}

void AdamW::step(double learning_rate, double gradient_scale) {
  const Span span("adamw", Phase::update);
  ++steps_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Variable& parameter = *parameters_[i].variable;
    check(parameter.grad().defined(), "[adamw] parameter '", parameters_[i].name,
          "' has no gradient: the loss does not depend on it");
    const AdamWStep step{learning_rate,
                         config_.beta1,
                         config_.beta2,
                         config_.epsilon,
                         parameters_[i].decays ? config_.weight_decay : 0,
                         gradient_scale,
                         steps_};
    dispatch(parameter.value(), [&](auto device, auto type) {
      using T = decltype(type);
      adamw(device, parameter.value().elements(), step, parameter.grad().data<T>(),
            parameter.value().data<T>(), m_[i].data<T>(), v_[i].data<T>());
    });
  }
}

NamedTensors AdamW::state() const {
  NamedTensors named;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    named.emplace_back("m." + parameters_[i].name, m_[i]);
    named.emplace_back("v." + parameters_[i].name, v_[i]);
  }
  return named;
}

double gradient_norm(const std::vector<Parameter>& parameters) {
  const Span span("gradient norm", Phase::update);
  double sum = 0;
  for (const Parameter& parameter : parameters) {
    const Tensor& gradient = std::as_const(*parameter.variable).grad();
    if (!gradient.defined()) continue;
    dispatch(gradient, [&](auto device, auto type) {
      sum += sum_of_squares(device, gradient.elements(), gradient.data<decltype(type)>());
    });
  }
  return std::sqrt(sum);
}

double clip_scale(double norm, double max_norm, double epsilon) {
  if (max_norm == 0 || norm == 0) return 1;
  return std::min(1.0, max_norm / (norm + epsilon));
}

double CosineSchedule::rate(int64_t t) const {
  if (t < warmup_steps) return peak * static_cast<double>(t + 1) / static_cast<double>(warmup_steps);
  if (t >= total_steps) return minimum;
  const double progress =
      static_cast<double>(t - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return minimum + (peak - minimum) / 2 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace mixgrad
