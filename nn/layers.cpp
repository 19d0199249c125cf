#include "nn/layers.h"

#include <cmath>

#include "autograd/ops/conv.h"
#include "autograd/ops/decay_gate.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/mlp.h"
#include "autograd/ops/norm.h"

namespace mixgrad {

namespace {
constexpr double weight_deviation = 0.02;  // GPT-2's
}

Linear::Linear(int64_t in, int64_t out, bool bias, Initialiser& initialiser)
    : weight_(initialiser.normal({out, in}, weight_deviation)) {
  declare("weight", weight_, Decay::yes);
  if (!bias) return;
  bias_ = initialiser.constant({out}, 0);
  declare("bias", bias_, Decay::no);
}

Variable Linear::forward(const Variable& x) const { return linear(x, weight_, bias_); }

Embedding::Embedding(int64_t ids, int64_t width, Initialiser& initialiser)
    : weight_(initialiser.normal({ids, width}, weight_deviation)) {
  declare("weight", weight_, Decay::yes);
}

Variable Embedding::forward(const Tensor& ids) const { return embedding(ids, weight_); }

Norm::Norm(NormKind kind, int64_t width, bool bias, Initialiser& initialiser)
    : kind_(kind), weight_(initialiser.constant({width}, 1)) {
  declare("weight", weight_, Decay::no);
  if (!bias || kind == NormKind::rms) return;
  bias_ = initialiser.constant({width}, 0);
  declare("bias", bias_, Decay::no);
}

Variable Norm::forward(const Variable& x) const {
  return kind_ == NormKind::layer ? layer_norm(x, weight_, bias_, 1e-5) : rms_norm(x, weight_, 1e-6);
}

ShortConv::ShortConv(int64_t channels, Initialiser& initialiser, bool bias) {
  const auto draw = [&](const Shape& shape) {
    return initialiser.values(uniform(shape, -0.5, 0.5, initialiser.generator(), DType::float64));
  };
  weight_ = draw({channels, taps});
  declare("weight", weight_, Decay::no);
  if (!bias) return;
  bias_ = draw({channels});
  declare("bias", bias_, Decay::no);
}

Variable ShortConv::forward(const Variable& x, Tensor* tail, const Tensor& documents) const {
  const Variable before = tail != nullptr ? Variable(*tail) : Variable();
  const ConvOptions options{.silu = true, .final_state = tail != nullptr, .documents = documents};
  const Convolution conv = causal_conv1d(x, weight_, bias_, before, options);
  if (tail != nullptr) *tail = conv.state.value();
  return conv.output;
}

Tensor ShortConv::empty_tail(int64_t batch) const {
  const Tensor& like = weight_.value();
  return Tensor::zeros({batch, taps - 1, like.shape()[0]}, like.dtype(), like.device());
}

namespace {

/// f of numbers that are uniform in [low, high).
template <class F>
Variable mapped_uniform(const Shape& shape, double low, double high, Initialiser& initialiser, const F& f) {
  Tensor values = uniform(shape, low, high, initialiser.generator(), DType::float64);
  auto* data = values.data<double>();
  for (int64_t i = 0; i < values.elements(); ++i) data[i] = f(data[i]);
  return initialiser.values(values);
}

/// The x whose softplus is y > 0.
double inverse_softplus(double y) { return std::log(std::expm1(y)); }

/// Rates from 1 to 1/64, as the dt_bias that gives them.
Tensor decay_ladder(int64_t heads) {
  std::vector<double> bias(heads);
  for (int64_t head = 0; head < heads; ++head) {
    const double share = heads > 1 ? static_cast<double>(head) / static_cast<double>(heads - 1) : 0;
    bias[head] = inverse_softplus(std::pow(64, -share));
  }
  return Tensor::from(bias, {heads});
}

}  // namespace

Variable random_step_biases(const Shape& shape, Initialiser& initialiser) {
  return mapped_uniform(shape, std::log(1e-3), std::log(1e-1), initialiser,
                        [](double log_step) { return inverse_softplus(std::exp(log_step)); });
}

Variable random_log_rates(const Shape& shape, Initialiser& initialiser) {
  return mapped_uniform(shape, 1, 16, initialiser, [](double rate) { return std::log(rate); });
}

DecayGate::DecayGate(int64_t width, int64_t heads, Initialiser& initialiser)
    : weight_(initialiser.normal({heads, width}, weight_deviation)),
      A_log_(initialiser.constant({heads}, 0)),
      dt_bias_(initialiser.values(decay_ladder(heads))) {
  declare("weight", weight_, Decay::yes);
  declare("A_log", A_log_, Decay::no);
  declare("dt_bias", dt_bias_, Decay::no);
}

Variable DecayGate::forward(const Variable& x) const {
  return decay_gate(linear(x, weight_), A_log_, dt_bias_);
}

Mlp::Mlp(int64_t width, int64_t hidden, bool bias, Initialiser& initialiser)
    : up_(width, hidden, bias, initialiser), down_(hidden, width, bias, initialiser) {
  declare("up", up_);
  declare("down", down_);
}

Variable Mlp::forward(const Variable& x) const {
  return mlp(x, up_.weight(), up_.bias(), down_.weight(), down_.bias());
}

}  // namespace mixgrad
