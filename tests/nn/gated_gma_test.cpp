// gated_gma against its page: token by token, from the module's own parameters.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "autograd/ops/conv.h"
#include "autograd/ops/decay_gate.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/gmm.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/norm.h"
#include "nn/mixer.h"

namespace mixgrad {
namespace {

constexpr int64_t width = 8, heads = 2, size = width / heads, components = 5, routing = 3, length = 70;

/// What the heads are given, of one sequence: responsibilities [T, H, K], values [T, H, dv], log decays and
/// rates [T, H], gates [T, H, dv].
struct Heads {
  std::vector<double> q, k, v, log_decay, beta, gate;
};

class Definition {
 public:
  explicit Definition(Mixer& mixer) {
    for (const Parameter& parameter : mixer.parameters()) parameters_[parameter.name] = *parameter.variable;
  }

  /// y [T, D] of x [1, T, D].
  std::vector<double> output(const Variable& x, int read, bool delta) const {
    const Heads in = heads_of(x, delta);
    std::vector<double> o(length * heads * size);
    for (int64_t h = 0; h < heads; ++h) read_head(in, h, read, delta, o);
    const Tensor joined = Tensor::from(o, {1, length, width});
    return linear(Variable(joined), parameters_.at("out.weight")).value().to_vector();
  }

 private:
  Variable convolved(const Variable& x, const std::string& name) const {
    const Variable projected = linear(x, parameters_.at(name + ".weight"));
    return causal_conv1d(projected, parameters_.at(name + "_conv.weight"), {}, {},
                         {.silu = true, .final_state = false})
        .output;
  }

  std::vector<double> responsibilities(const Variable& x, const std::string& name) const {
    const Variable routed = rms_norm(reshape(convolved(x, name), {1, length, heads, routing}));
    return gmm_responsibilities(routed, parameters_.at("mean"), parameters_.at("omega"),
                                parameters_.at("alpha"))
        .value()
        .to_vector();
  }

  Heads heads_of(const Variable& x, bool delta) const {
    const Variable steps = linear(x, parameters_.at("decay.weight"));
    Heads result;
    result.q = responsibilities(x, "q");
    result.k = responsibilities(x, "k");
    result.v = convolved(x, "v").value().to_vector();
    result.log_decay =
        decay_gate(steps, parameters_.at("decay.A_log"), parameters_.at("decay.dt_bias")).value().to_vector();
    if (delta) result.beta = sigmoid(linear(x, parameters_.at("beta.weight"))).value().to_vector();
    result.gate = silu(linear(x, parameters_.at("gate.weight"))).value().to_vector();
    return result;
  }

  void read_head(const Heads& in, int64_t h, int read, bool delta, std::vector<double>& o) const {
    std::vector<double> S(components * size), z(components);
    for (int64_t t = 0; t < length; ++t) {
      const int64_t row = t * heads + h;
      std::vector<double> q(&in.q[row * components], &in.q[row * components] + components);
      std::vector<double> k(&in.k[row * components], &in.k[row * components] + components);
      if (read == 0) to_unit(q), to_unit(k);
      const double kept = std::exp(in.log_decay[row]);
      for (double& value : S) value *= kept;
      for (int64_t i = 0; i < components; ++i) z[i] = kept * z[i] + k[i];
      double mass = 1e-6;
      for (int64_t i = 0; i < components; ++i) mass += q[i] * z[i];
      double square = 0;
      double* const out = &o[row * size];
      for (int64_t j = 0; j < size; ++j) {
        double written = in.v[row * size + j];
        if (delta) {
          for (int64_t i = 0; i < components; ++i) written -= k[i] * S[i * size + j];
          written *= in.beta[row];
        }
        double value = 0;
        for (int64_t i = 0; i < components; ++i) {
          S[i * size + j] += k[i] * written;
          value += q[i] * S[i * size + j] / (read == 1 ? mass : read == 2 ? z[i] + 1e-6 : 1);
        }
        out[j] = value;
        square += value * value / size;
      }
      for (int64_t j = 0; j < size; ++j) {
        if (read == 0) out[j] /= std::sqrt(square + 1e-6);
        out[j] *= in.gate[row * size + j];
      }
    }
  }

  static void to_unit(std::vector<double>& x) {
    double square = 1e-6;
    for (const double value : x) square += value * value;
    for (double& value : x) value /= std::sqrt(square);
  }

  std::map<std::string, Variable> parameters_;
};

}  // namespace

TEST_CASE("nn/gated_gma: each way to write and read is that of its page") {
  const NoGrad no_grad;
  Generator generator(3);
  for (const auto& [read, delta] : {std::pair{0, false}, {1, false}, {2, false}, {0, true}}) {
    const std::string pattern =
        str("gated_gma(components=5,routing=3,read=", read, ",delta=", delta ? 1 : 0, ")");
    CAPTURE(pattern);
    Initialiser initialiser(DType::float64, Device{}, generator);
    const auto mixer = make_mixer(parse_pattern(pattern, 1)[0], width, heads, false, initialiser);
    for (const Parameter& parameter : mixer->parameters()) {  // far from their start, where gates are equal
      if (parameter.variable->shape().rank() == 2)
        parameter.variable->value().copy_from(
            normal(parameter.variable->shape(), 0.5, generator, DType::float64));
    }
    const Variable x(normal({1, length, width}, 1, generator, DType::float64));
    const std::vector<double> y = mixer->forward({.x = x, .context = {}, .key_mask = {}}).value().to_vector();
    const std::vector<double> expected = Definition(*mixer).output(x, read, delta);
    double difference = 0, largest = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      difference = std::max(difference, std::abs(y[i] - expected[i]));
      largest = std::max(largest, std::abs(expected[i]));
    }
    // 1.5e-15; read in another of the four ways, 0.5 or more.
    CHECK(difference <= 1e-12 * largest);
  }
}

TEST_CASE("nn/gated_gma: a correction has nothing to be divided by") {
  Generator generator(1);
  Initialiser initialiser(DType::float64, Device{}, generator);
  const MixerChoice choice = parse_pattern("gated_gma(read=1,delta=1)", 1)[0];
  CHECK_THROWS_WITH_AS(make_mixer(choice, width, heads, false, initialiser),
                       doctest::Contains("delta 1 with read 1"), UsageError);
}

}  // namespace mixgrad
