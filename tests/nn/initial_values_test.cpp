// Parameters start as the mixers' pages say: constants exactly, draws by range and distribution.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {
namespace {

using Vector = std::vector<double>;

/// The values of a parameter of a new mixer of width 64 with 4 heads.
Vector first_values(const std::string& pattern, const std::string& name) {
  Generator generator(5);
  Initialiser initialiser(DType::float64, Device{}, generator);
  const auto mixer = make_mixer(parse_pattern(pattern, 1)[0], 64, 4, false, initialiser);
  for (const Parameter& parameter : mixer->parameters()) {
    if (parameter.name == name) return parameter.variable->value().to_vector();
  }
  FAIL(pattern, " has no parameter ", name);
  return {};
}

double softplus(double x) { return std::log1p(std::exp(x)); }

template <class F>
Vector mapped(Vector values, const F& f) {
  for (double& value : values) value = f(value);
  return values;
}

/// The mean of |value / scale|^power.
double moment(const Vector& values, double scale, int power) {
  double sum = 0;
  for (const double value : values) sum += std::pow(std::abs(value / scale), power);
  return sum / static_cast<double>(values.size());
}

void check_constant(const Vector& values, double constant) {
  for (const double value : values) CHECK(value == doctest::Approx(constant).epsilon(1e-12));
}

/// Second and fourth moment: 1 and 3 for a normal variable, 1/3 and 1/5 for a uniform one. The widths are
/// five standard deviations of what n draws give.
void check_normal(const Vector& values, double deviation) {
  const double n = static_cast<double>(values.size());
  CHECK(std::abs(moment(values, deviation, 2) - 1) < 5 * std::sqrt(2 / n));
  CHECK(std::abs(moment(values, deviation, 4) - 3) < 5 * std::sqrt(96 / n));
}

void check_uniform(const Vector& values, double low, double high) {
  const double n = static_cast<double>(values.size()), middle = (low + high) / 2, half = (high - low) / 2;
  const Vector centred = mapped(values, [=](double value) { return value - middle; });
  CHECK(*std::min_element(values.begin(), values.end()) >= low);
  CHECK(*std::max_element(values.begin(), values.end()) <= high);
  double mean = 0;
  for (const double value : centred) mean += value / half / n;
  CHECK(std::abs(mean) < 5 * std::sqrt(1 / (3 * n)));
  CHECK(std::abs(moment(centred, half, 2) - 1.0 / 3) < 5 * std::sqrt(4 / (45 * n)));
}

}  // namespace

TEST_CASE("nn/initial values: projections are N(0, 0.02) and norms are 1 in every mixer") {
  for (const MixerKind& kind : mixer_kinds()) {
    CAPTURE(kind.name);
    check_normal(first_values(kind.name, "out.weight"), 0.02);
  }
  for (const char* mixer :
       {"linear", "retention", "gla", "mamba2", "delta", "kda", "mesa", "titans", "atlas"}) {
    CAPTURE(mixer);
    check_constant(first_values(mixer, "norm"), 1);
  }
}

TEST_CASE("nn/initial values: convolutions are uniform between -1/2 and 1/2") {
  for (const char* mixer : {"delta", "mamba2", "longhorn", "titans", "sdpa(conv=1)"}) {
    check_uniform(first_values(mixer, "q_conv.weight"), -0.5, 0.5);
  }
  check_uniform(first_values("mamba", "conv.bias"), -0.5, 0.5);
}

TEST_CASE("nn/initial values: decay gates are a ladder from 1 to 1/64 a token") {
  for (const std::string mixer : {"gated_delta", "delta_product", "gated_gma", "mesa", "sdpa(forget=1)"}) {
    CAPTURE(mixer);
    check_constant(first_values(mixer, "decay.A_log"), 0);
    const Vector rates = mapped(first_values(mixer, "decay.dt_bias"), softplus);
    REQUIRE(rates.size() == 4);
    for (int head = 0; head < 4; ++head) {
      CHECK(rates[head] == doctest::Approx(std::pow(64, -head / 3.0)).epsilon(1e-12));
    }
  }
}

TEST_CASE("nn/initial values: state space models draw their rates and steps") {
  const auto log_step = [](double bias) { return std::log(softplus(bias)); };
  for (const auto& [mixer, name] :
       {std::pair{"mamba2", "dt_bias"}, {"kda", "dt_bias"}, {"mamba", "step_bias"}}) {
    CAPTURE(mixer);
    check_uniform(mapped(first_values(mixer, name), log_step), std::log(1e-3), std::log(1e-1));
  }
  for (const char* mixer : {"mamba2", "kda"}) {
    check_uniform(mapped(first_values(mixer, "A_log"), [](double x) { return std::exp(x); }), 1, 16);
  }
  const Vector logs = first_values("mamba", "A_log");
  for (size_t i = 0; i < logs.size(); ++i) CHECK(logs[i] == std::log(static_cast<double>(i % 16 + 1)));
  check_constant(first_values("mamba", "D"), 1);
  check_constant(first_values("mamba2", "D"), 1);
  check_uniform(first_values("mamba", "step_up"), -0.5, 0.5);  // 1 / sqrt(R), R = 4
}

TEST_CASE("nn/initial values: a mixture begins on the sphere of its data, as sharp as it is asked to be") {
  for (const double sharpness : {2.0, 0.5}) {
    const std::string pattern = str("gma(sharpness=", sharpness, ")");
    const Vector means = first_values(pattern, "mean");
    for (size_t first = 0; first < means.size(); first += 16) {
      double squares = 0;
      for (size_t m = first; m < first + 16; ++m) squares += means[m] * means[m];
      CHECK(squares == doctest::Approx(16).epsilon(1e-12));
    }
    check_constant(mapped(first_values(pattern, "omega"), softplus), 4 / sharpness);
    check_constant(first_values(pattern, "alpha"), 0);
  }
}

TEST_CASE("nn/initial values: networks that learn while they read") {
  const Vector rows = mapped(first_values("ttt_linear", "row"), softplus);
  for (size_t i = 0; i < rows.size(); ++i) {
    CHECK(rows[i] == doctest::Approx(1 / static_cast<double>(i + 1)).epsilon(1e-12));
  }
  for (const char* mixer : {"ttt_linear", "ttt_mlp"}) {
    check_constant(first_values(mixer, "gamma"), 1);
    check_constant(first_values(mixer, "beta"), 0);
  }
  check_normal(first_values("ttt_linear", "weight"), 0.02);
  check_constant(first_values("ttt_linear", "bias"), 0);
  check_normal(first_values("ttt_mlp", "weight1"), 0.02);
  check_normal(first_values("ttt_mlp", "weight2"), 0.02);
  check_normal(first_values("titans", "weight1"), 2 / std::sqrt(32));  // of F = 32 hidden units
  check_normal(first_values("titans", "weight2"), 0.02);
  check_normal(first_values("titans(expansion=0)", "weight"), 0.02);
  check_normal(first_values("atlas", "matrix"), 0.02);
  CHECK(first_values("atlas", "q_coefficients") == Vector{1, 0.5});
  CHECK(first_values("atlas", "k_coefficients") == Vector{1, 0.5});
}

TEST_CASE("nn/initial values: what else their pages say") {
  check_constant(mapped(first_values("mesa", "ridge"), softplus), 0.75);  // 1 with the least of 0.25
  check_uniform(first_values("linformer(rank=9,shared=0)", "key_mixtures"), -1.0 / 3, 1.0 / 3);
  check_uniform(first_values("linformer(rank=9,shared=0)", "value_mixtures"), -1.0 / 3, 1.0 / 3);
  check_constant(first_values("gla", "decay_up.bias"), 0);
  check_constant(first_values("sdpa(qk_norm=1)", "q_norm"), 1);
}

}  // namespace mixgrad
