// Training steps of a whole model: the same numbers with any number of threads; no memory asked for twice.
#include <doctest/doctest.h>

#include "autograd/tape.h"
#include "models/language_model.h"
#include "nn/optimizer.h"
#include "tensor/allocator.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {

namespace {

/// Large enough that most loops have several blocks; no size is a round number.
ModelConfig config_of(const MixerKind& kind) {
  ModelConfig config;
  config.vocabulary = 67;
  config.layers = 2;
  config.heads = 3;
  config.width = 48;
  config.context = 97;
  config.pattern = kind.name;
  config.bias = true;
  config.dropout = 0.1;
  return config.resolved();
}

/// Ids in [0, 67), in no simple order.
Tensor ids_of(const Shape& shape, int32_t factor) {
  std::vector<int32_t> ids(shape.elements());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * i * factor % 1009 % 67);
  return Tensor::from(ids, shape);
}

}  // namespace

TEST_CASE("models/training: loss and all gradients have the same bits with any number of threads") {
  for (const MixerKind& kind : mixer_kinds()) {
    if (!kind.forms.causal) continue;
    CAPTURE(kind.name);
    Generator generator(6);
    Initialiser initialiser(DType::float32, Device{}, generator);
    LanguageModel model(config_of(kind), initialiser);
    check_same_with_any_threads([&] {
      Generator dropout(7, Stream::dropout);
      model.zero_grad();
      const Variable loss = model.loss(ids_of({5, 97}, 3), ids_of({5, 97}, 5), &dropout);
      backward(loss);
      std::vector<double> numbers = {loss.value().item()};
      for (const Parameter& parameter : model.parameters()) {
        for (const double value : std::as_const(*parameter.variable).grad().to_vector())
          numbers.push_back(value);
      }
      return numbers;
    });
  }
}

TEST_CASE("models/training: a step on every device is that of the CPU") {
  struct Numbers {
    double loss, norm;
    std::vector<double> values;  // of all parameters after the step
  };
  for (const MixerKind& kind : mixer_kinds()) {
    if (!kind.forms.causal) continue;
    CAPTURE(kind.name);
    ModelConfig config = config_of(kind);
    config.context = 19;
    config.heads = 2;
    config.width = 24;
    config.pattern = kind.name + "(" + kind.check_options + ")";
    const auto step_on = [&](Device device) {
      Generator generator(6), dropout(7, Stream::dropout);
      Initialiser initialiser(DType::float64, device, generator);
      LanguageModel model(config.resolved(), initialiser);
      AdamW optimizer(model.parameters(), {});
      const Variable loss = model.loss(ids_of({2, 19}, 3), ids_of({2, 19}, 5), &dropout);
      backward(loss);
      Numbers numbers{loss.value().item(), gradient_norm(model.parameters()), {}};
      optimizer.step(0.01, clip_scale(numbers.norm, 1));
      for (const Parameter& parameter : model.parameters()) {
        for (const double value : parameter.variable->value().to_vector()) numbers.values.push_back(value);
      }
      return numbers;
    };
    const Numbers cpu = step_on(Device{});
    for (const Device device : available_devices()) {
      CAPTURE(device);
      const Numbers numbers = step_on(device);
      // Sums in another order: 1e-15 of the loss, and of a gradient. AdamW's first step divides each gradient
      // by its own size, so that one that is almost 0 moves its parameter by up to 0.01 either way.
      CHECK(numbers.loss == doctest::Approx(cpu.loss).epsilon(1e-12));
      CHECK(numbers.norm == doctest::Approx(cpu.norm).epsilon(1e-10));
      int64_t elsewhere = 0;
      for (size_t i = 0; i < cpu.values.size(); ++i)
        elsewhere += std::abs(numbers.values[i] - cpu.values[i]) > 1e-8;
      CHECK(elsewhere <= static_cast<int64_t>(cpu.values.size() / 100));
    }
  }
}

TEST_CASE("models/training: after the first step the system is asked for no more memory") {
  Allocator& memory = Allocator::of(Device{});
  if (memory.debug()) return;  // nothing is kept for reuse
  for (const MixerKind& kind : mixer_kinds()) {
    if (!kind.forms.causal) continue;
    CAPTURE(kind.name);
    memory.trim();
    Generator generator(8);
    Initialiser initialiser(DType::float32, Device{}, generator);
    LanguageModel model(config_of(kind), initialiser);
    AdamW optimizer(model.parameters(), {});
    const auto allocations_of_step = [&] {
      const int64_t before = memory.stats().system_allocations;
      model.zero_grad();
      backward(model.loss(ids_of({5, 97}, 3), ids_of({5, 97}, 5), &generator));
      optimizer.step(0.001, clip_scale(gradient_norm(model.parameters()), 1));
      return memory.stats().system_allocations - before;
    };
    CHECK(allocations_of_step() > 50);
    for (int step = 0; step < 3; ++step) CHECK(allocations_of_step() == 0);
  }
}

}  // namespace mixgrad
