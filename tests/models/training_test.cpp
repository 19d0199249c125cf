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
