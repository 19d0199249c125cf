// Constants that follow from parameters: kept while these stay, and never used when they have changed.
#include "autograd/kept.h"

#include <doctest/doctest.h>

#include "autograd/ops/elementwise.h"
#include "autograd/tape.h"
#include "nn/mixer.h"
#include "nn/optimizer.h"

namespace mixgrad {
namespace {

/// A mixer of two heads of 4, with parameters in double that a seed draws.
struct TestMixer {
  Generator generator;
  Initialiser initialiser{DType::float64, Device{}, generator};
  std::unique_ptr<Mixer> mixer;

  TestMixer(const MixerChoice& choice, uint64_t seed)
      : generator(seed), mixer(make_mixer(choice, 8, 2, false, initialiser)) {}

  std::vector<double> read(const Tensor& x) {
    const NoGrad no_grad;
    MixerState state = mixer->initial_state(1, x.shape()[1]);
    return mixer->forward({.x = Variable(x), .context = {}, .key_mask = {}, .state = &state})
        .value()
        .to_vector();
  }
};

/// What a mixer gives that has read nothing before with these parameters.
std::vector<double> read_by_another(const MixerChoice& choice, const std::vector<Parameter>& parameters,
                                    const Tensor& x) {
  TestMixer another(choice, 2);
  const std::vector<Parameter> own = another.mixer->parameters();
  for (size_t i = 0; i < own.size(); ++i) own[i].variable->value() = parameters[i].variable->value().clone();
  return another.read(x);
}

}  // namespace

TEST_CASE("nn/kept: what was computed stays until a parameter is written or replaced") {
  const NoGrad no_grad;
  Variable a(Tensor::full({2}, 1, DType::float64)), b(Tensor::full({2}, 2, DType::float64));
  Kept<Variable> kept;
  int computed = 0;
  const auto sum_is = [&](double expected) {
    const Variable sum = kept.get({a, b}, [&] {
      ++computed;
      return add(a, b);
    });
    return sum.value().to_vector() == std::vector<double>{expected, expected};
  };
  CHECK(sum_is(3));
  CHECK(sum_is(3));
  CHECK(computed == 1);
  b.value().fill(5);
  CHECK(sum_is(6));
  a.value().data<double>()[0] = 2;
  a.value().data<double>()[1] = 2;
  CHECK(sum_is(7));
  CHECK(computed == 3);
  a.value() = Tensor::full({2}, 4, DType::float64);
  CHECK(sum_is(9));
  a = Variable(Tensor::full({2}, 0, DType::float64));
  CHECK(sum_is(5));
  CHECK(sum_is(5));
  CHECK(computed == 5);
}

TEST_CASE("nn/kept: where ops are recorded gradients flow and nothing is kept") {
  const Variable x(Tensor::full({}, 3, DType::float64), true);
  Kept<Variable> kept;
  const auto square = [&] { return multiply(x, x); };
  {
    const NoGrad no_grad;
    CHECK_FALSE(kept.get({x}, square).requires_grad());
  }
  backward(kept.get({x}, square));
  CHECK(x.grad().item() == 6);
  const NoGrad no_grad;
  int computed = 0;
  kept.get({x}, [&] {
    ++computed;
    return square();
  });
  CHECK(computed == 1);
}

TEST_CASE("nn/kept: no mixer reads with constants of parameters that have changed") {
  Generator generator(3);
  const Tensor x = normal({1, 3, 8}, 1, generator, DType::float64);
  for (const MixerKind& kind : mixer_kinds()) {
    if (!kind.forms.causal) continue;
    CAPTURE(kind.name);
    const MixerChoice choice = parse_pattern(str(kind.name, "(", kind.check_options, ")"), 1)[0];
    TestMixer ours(choice, 1);
    std::vector<Parameter> parameters = ours.mixer->parameters();
    const std::vector<double> first = ours.read(x);
    CHECK(ours.read(x) == first);

    // Each alone has to be noticed.
    for (Parameter& parameter : parameters) {
      CAPTURE(parameter.name);
      Tensor& value = parameter.variable->value();
      value.copy_from(normal(value.shape(), 0.3, generator, value.dtype()));
      CHECK(ours.read(x) == read_by_another(choice, parameters, x));
    }

    // As loading a checkpoint writes: every value is another one.
    for (Parameter& parameter : parameters) {
      Tensor& value = parameter.variable->value();
      value.copy_from(normal(value.shape(), 0.3, generator, value.dtype()));
    }
    const std::vector<double> loaded = ours.read(x);
    CHECK(loaded != first);
    CHECK(loaded == read_by_another(choice, parameters, x));

    // As training writes.
    AdamW optimizer(parameters, AdamWConfig{});
    for (Parameter& parameter : parameters) {
      const Tensor& value = parameter.variable->value();
      parameter.variable->grad() = Tensor::full(value.shape(), 1, value.dtype());
    }
    optimizer.step(0.01, 1);
    CHECK(ours.read(x) != loaded);
    CHECK(ours.read(x) == read_by_another(choice, parameters, x));
  }
}

}  // namespace mixgrad
