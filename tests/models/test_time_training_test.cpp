// A model that learns while it reads: what it learns, the gradient that trains it, and reading in pieces.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "autograd/ops/elementwise.h"
#include "autograd/tape.h"
#include "models/generate.h"
#include "models/language_model.h"
#include "nn/optimizer.h"
#include "tests/tensor/fixtures.h"

namespace mixgrad {
namespace {

constexpr int64_t piece = 4;

/// Of eight blocks the last two learn.
ModelConfig small_config(const std::string& pattern = "sdpa(window=5)*7,gma(components=5,routing=3)") {
  ModelConfig config;
  config.vocabulary = 7;
  config.layers = 8;
  config.heads = 2;
  config.width = 8;
  config.context = 32;
  config.mlp_hidden = 6;
  config.pattern = pattern;
  config.ttt_tokens = piece;
  config.ttt_hidden = 5;
  return config;
}

/// Weights of some size, so that what is learned matters.
std::unique_ptr<LanguageModel> build(const ModelConfig& config, DType dtype = DType::float64,
                                     Device device = {}) {
  Generator generator(4);
  Initialiser initialiser(dtype, device, generator);
  auto model = std::make_unique<LanguageModel>(config, initialiser);
  for (const Parameter& parameter : model->parameters()) {
    if (!parameter.decays) continue;
    Tensor& w = parameter.variable->value();
    w.copy_from(normal(w.shape(), 0.3, generator, dtype, device));
  }
  return model;
}

/// Ids in [0, 7), in no simple order.
Tensor ids_of(int64_t batch, int64_t length, int64_t factor = 3) {
  std::vector<int32_t> ids(batch * length);
  for (int64_t i = 0; i < batch * length; ++i) ids[i] = static_cast<int32_t>(i * i * factor % 1009 % 7);
  return Tensor::from(ids, {batch, length});
}

Tensor columns(const Tensor& ids, int64_t begin, int64_t count) {
  return ids.narrow(1, begin, count).contiguous();
}

double largest_difference(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<double> left = a.to_vector(), right = b.to_vector();
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const double difference = std::abs(left[i] - right[i]);
    if (!(difference <= largest)) largest = difference;  // NaN stays
  }
  return largest;
}

/// The nats of the given next tokens of each text, [B].
std::vector<double> nats_of_texts(const Tensor& logits, const Tensor& next) {
  const int64_t batch = logits.shape()[0], length = logits.shape()[1], vocabulary = logits.shape()[2];
  const std::vector<double> z = logits.to_vector(), targets = next.to_vector();
  std::vector<double> nats(batch);
  for (int64_t row = 0; row < batch * length; ++row) {
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(z[row * vocabulary + v]);
    nats[row / length] += std::log(sum) - z[row * vocabulary + static_cast<int64_t>(targets[row])];
  }
  return nats;
}

/// The state behind `length` tokens.
LanguageModelState state_behind(LanguageModel& model, const Tensor& ids, int64_t length) {
  LanguageModelState state = model.initial_state(ids.shape()[0], 8);
  if (length > 0) model.logits(columns(ids, 0, length), &state);
  return state;
}

/// What the fast weights are for each piece of a text that is read with updates: [piece][matrix].
std::vector<Tensors> weights_of_pieces(LanguageModel& model, const Tensor& ids) {
  std::vector<Tensors> weights;
  for (int64_t begin = 0; begin < ids.shape()[1]; begin += piece) {
    weights.push_back(
        state_behind(model, ids, begin + 1).learning.weights);  // an update needs the next token
  }
  return weights;
}

}  // namespace

TEST_CASE("models/test-time training: an update is a step against the numeric gradient of its piece") {
  for (const double deviation :
       {0.3, 3.0}) {  // gradients of a norm below 1, which stay, and above, which are clipped
    CAPTURE(deviation);
    ModelConfig config = small_config();
    config.ttt_rate = 0.5;
    const auto model = build(config);
    for (const Parameter& parameter : model->parameters()) {
      if (parameter.name == "tokens.weight") {
        Tensor& w = parameter.variable->value();
        for (int64_t i = 0; i < w.elements(); ++i) w.data<double>()[i] *= deviation / 0.3;
      }
    }
    const NoGrad no_grad;
    const int64_t batch = 2;
    const Tensor ids = ids_of(batch, 3 * piece + 1);
    const std::vector<Tensors> weights = weights_of_pieces(*model, ids);
    for (const int64_t p : {0, 1}) {
      CAPTURE(p);
      const Tensor inputs = columns(ids, p * piece, piece), next = columns(ids, p * piece + 1, piece);
      // Mean nats of each text's piece, with one entry of one matrix moved in all of them.
      const auto nats = [&](size_t matrix, int64_t entry, double offset) {
        LanguageModelState state = state_behind(*model, ids, p * piece);
        state.learning.held = 0;  // no update: these weights
        for (size_t i = 0; i < weights[p].size(); ++i) state.learning.weights[i] = weights[p][i].clone();
        Tensor& moved = state.learning.weights[matrix];
        for (int64_t b = 0; b < batch; ++b)
          moved.data<double>()[b * (moved.elements() / batch) + entry] += offset;
        std::vector<double> sums = nats_of_texts(model->logits(inputs, &state).value(), next);
        for (double& sum : sums) sum /= piece;
        return sums;
      };
      std::vector<std::vector<double>> gradient(batch), change(batch);
      for (size_t matrix = 0; matrix < weights[p].size(); ++matrix) {
        const int64_t entries = weights[p][matrix].elements() / batch;
        const std::vector<double> before = weights[p][matrix].to_vector(),
                                  after = weights[p + 1][matrix].to_vector();
        for (int64_t entry = 0; entry < entries; ++entry) {
          constexpr double h = 1e-5;
          const std::vector<double> up = nats(matrix, entry, h), down = nats(matrix, entry, -h);
          for (int64_t b = 0; b < batch; ++b) {
            gradient[b].push_back((up[b] - down[b]) / (2 * h));
            change[b].push_back(after[b * entries + entry] - before[b * entries + entry]);
          }
        }
      }
      for (int64_t b = 0; b < batch; ++b) {
        double squares = 0;
        for (const double g : gradient[b]) squares += g * g;
        CHECK((squares > 1) == (deviation > 1));
        const double factor = 0.5 / std::max(1.0, std::sqrt(squares));
        double worst = 0;
        for (size_t i = 0; i < gradient[b].size(); ++i)
          worst = std::max(worst, std::abs(change[b][i] + factor * gradient[b][i]));
        // 1e-10 by the step; the updates' largest entries are 0.08 and more.
        CHECK(worst < 1e-8);
      }
    }
  }
}

TEST_CASE("models/test-time training: any way of reading a text gives the whole") {
  for (const char* pattern :
       {"sdpa(window=5)*7,gma(components=5,routing=3)", "gated_gma(components=5,routing=3)*7,sdpa",
        "mamba(state=3)*6,mesa,mamba(state=3)", "ttt_linear(mini_batch=4)*7,sdpa(conv=1,forget=1)"}) {
    CAPTURE(pattern);
    const auto model = build(small_config(pattern));
    const NoGrad no_grad;
    const Tensor ids = ids_of(2, 23);
    const Tensor whole = model->logits(ids).value();
    const auto read = [&](const std::vector<int64_t>& lengths, LanguageModelState& state) {
      Tensor logits = empty_like(whole);
      int64_t at = 0;
      for (const int64_t length : lengths) {
        logits.narrow(1, at, length).copy_from(model->logits(columns(ids, at, length), &state).value());
        at += length;
      }
      REQUIRE(at == 23);
      return logits;
    };
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{23}, {4, 4, 15}, {3, 2, 18}, {1, 11, 11}, std::vector<int64_t>(23, 1)}) {
      LanguageModelState state = model->initial_state(2, 3);
      CHECK(largest_difference(read(lengths, state), whole) < 1e-12);  // rounding alone, 1e-14
    }
    ModelConfig still = small_config(pattern);
    still.ttt_rate = 0;
    const Tensor without = build(still)->logits(ids).value();
    CHECK(largest_difference(without.narrow(1, 0, piece), whole.narrow(1, 0, piece)) < 1e-12);
    CHECK(largest_difference(without.narrow(1, piece, 1), whole.narrow(1, piece, 1)) > 1e-4);
    CHECK(largest_difference(without, whole) > 0.5);  // 1.2 and more
  }
}

TEST_CASE("models/test-time training: without a rate it is an ordinary model of as many parameters") {
  ModelConfig config = small_config();
  config.ttt_rate = 0;
  const auto still = build(config);
  config.ttt_rate = 1e-13;
  const auto barely = build(config);
  config.ttt_rate = 1;
  const auto learning = build(config);
  const Tensor ids = ids_of(3, 30), targets = ids_of(3, 30, 5);
  const double loss = still->loss(ids, targets).value().item();
  CHECK(std::abs(barely->loss(ids, targets).value().item() - loss) < 1e-12);
  CHECK(std::abs(learning->loss(ids, targets).value().item() - loss) > 1e-3);
  CHECK(learning->parameter_count() == still->parameter_count());
  config.ttt_tokens = 0;
  CHECK(still->parameter_count() ==
        build(config)->parameter_count() + 2 * (8 + 2 * 5 * 8));  // norm, up, down
}

TEST_CASE("models/test-time training: the outer gradient is that of the loss with the updates held") {
  const ModelConfig config = small_config();
  const auto model = build(config);
  const int64_t length = 3 * piece + 2;
  const Tensor ids = ids_of(2, length), targets = ids_of(2, length, 5);
  const std::vector<Parameter> parameters = model->parameters();
  std::vector<Variable> fast;
  for (const Parameter& parameter : parameters) {
    if (parameter.name.find("fast_mlp") != std::string::npos) fast.push_back(*parameter.variable);
  }
  REQUIRE(fast.size() == 4);
  std::vector<Tensors> changes;
  {
    const NoGrad no_grad;
    changes = weights_of_pieces(*model, ids);
    for (Tensors& matrices : changes) {
      for (size_t i = 0; i < matrices.size(); ++i) {
        matrices[i] = add(Variable(matrices[i]), scale(fast[i], -1)).value();
      }
    }
  }
  const auto held_loss = [&] {
    const NoGrad no_grad;
    LanguageModelState state = model->initial_state(2, length);
    double nats = 0;
    for (size_t p = 0; p < changes.size(); ++p) {
      const auto begin = static_cast<int64_t>(p) * piece;
      const int64_t count = std::min(piece, length - begin);
      state.learning.held = 0;
      for (size_t i = 0; i < fast.size(); ++i) {
        state.learning.weights[i] = add(Variable(changes[p][i]), fast[i]).value();
      }
      for (const double text : nats_of_texts(model->logits(columns(ids, begin, count), &state).value(),
                                             columns(targets, begin, count)))
        nats += text;
    }
    return nats / static_cast<double>(2 * length);
  };
  const Variable loss = model->loss(ids, targets);
  CHECK(std::abs(held_loss() - loss.value().item()) < 1e-12);
  backward(loss);
  const auto free_loss = [&] {
    const NoGrad no_grad;
    return model->loss(ids, targets).value().item();
  };

  Generator generator(9);
  double largest_effect = 0;
  for (const Parameter& parameter : parameters) {
    CAPTURE(parameter.name);
    Tensor& values = parameter.variable->value();
    const Tensor start = values.clone(), direction = normal(values.shape(), 1, generator, DType::float64);
    const auto slope = [&](const auto& f) {
      constexpr double h = 1e-6;
      const auto at = [&](double offset) {
        values.copy_from(add(Variable(start), scale(Variable(direction), offset)).value());
        return f();
      };
      const double result = (at(h) - at(-h)) / (2 * h);
      values.copy_from(start);
      return result;
    };
    const double analytic =
        sum(multiply(Variable(parameter.variable->grad()), Variable(direction))).value().item();
    const double numeric = slope(held_loss);
    // 4e-9 by the step; the gradient that passes through the updates, too, is another by up to 0.4.
    CHECK(std::abs(analytic - numeric) < 1e-8);
    largest_effect = std::max(largest_effect, std::abs(slope(free_loss) - analytic));
  }
  CHECK(largest_effect > 0.1);
}

TEST_CASE("models/test-time training: what a text repeats is learned while it is read") {
  ModelConfig config = small_config();
  config.context = 128;
  std::vector<int32_t> text;
  for (int i = 0; i < 129; ++i) text.push_back(i % 5);
  const Tensor ids = Tensor::from(std::vector<int32_t>(text.begin(), text.end() - 1), {1, 128});
  const Tensor next = Tensor::from(std::vector<int32_t>(text.begin() + 1, text.end()), {1, 128});
  const double learning = build(config)->nats(ids, next).nats / 128;
  config.ttt_rate = 0;
  const double still = build(config)->nats(ids, next).nats / 128;
  CHECK(learning < still - 0.1);  // 1.92 and 2.20 nats
}

TEST_CASE("models/test-time training: dropout stays out of what is learned") {
  ModelConfig config = small_config();
  config.dropout = 0.5;
  Generator learning(3, Stream::dropout), still(3, Stream::dropout);
  const Variable loss = build(config)->loss(ids_of(2, 30), ids_of(2, 30, 5), &learning);
  config.ttt_rate = 0;
  build(config)->loss(ids_of(2, 30), ids_of(2, 30, 5), &still);
  CHECK(learning.position() == still.position());
  backward(loss);
}

TEST_CASE("models/test-time training: a step on every device and with any number of threads is the same") {
  ModelConfig config = small_config();
  config.layers = 4;
  config.pattern = "gma(components=5,routing=3)";
  const auto numbers = [&](Device device, DType dtype) {
    const auto model = build(config, dtype, device);
    const Variable loss = model->loss(ids_of(3, 30), ids_of(3, 30, 5));
    backward(loss);
    const NoGrad no_grad;
    LanguageModelState state = state_behind(*model, ids_of(3, 30), 3);
    const Tensor logits = model->logits(columns(ids_of(3, 30), 3, 27), &state).value();
    return std::vector{loss.value().item(), gradient_norm(model->parameters()),
                       logits.narrow(1, 26, 1).to_vector().front()};
  };
  check_same_with_any_threads([&] { return numbers(Device{}, DType::float32); });
  const std::vector<double> cpu = numbers(Device{}, DType::float64);
  for (const Device device : available_devices()) {
    CAPTURE(device);
    const std::vector<double> other = numbers(device, DType::float64);
    // Sums in another order: 1e-15; without updates the numbers differ as follows.
    for (size_t i = 0; i < cpu.size(); ++i) CHECK(other[i] == doctest::Approx(cpu[i]).epsilon(1e-10));
  }
  config.ttt_rate = 0;
  const std::vector<double> still = numbers(Device{}, DType::float64);
  for (size_t i = 0; i < cpu.size(); ++i) CHECK(std::abs(still[i] - cpu[i]) > 1e-3);
}

TEST_CASE("models/test-time training: its state does not grow and says its size") {
  const auto model = build(small_config("gma(components=5,routing=3)"));
  const NoGrad no_grad;
  const Tensor ids = ids_of(1, 30);
  const int64_t bytes = model->initial_state(1, 30).bytes();
  CHECK(state_behind(*model, ids, 30).bytes() == bytes);
  ModelConfig still = small_config("gma(components=5,routing=3)");
  still.ttt_rate = 0;
  const int64_t mixers = build(still)->initial_state(1, 30).bytes();
  // Weights of two blocks, the last mixer's state once more, and the piece with its ids.
  CHECK(bytes - mixers == 8 * (2 * 2 * 5 * 8) + mixers / 8 + 8 * piece * 8 + 4 * (piece + 1));
}

TEST_CASE("models/test-time training: its cost is that of the matrices behind the first mixer") {
  ModelConfig config = small_config("gma(components=5,routing=3)");
  config.layers = 4;
  const int64_t head = 7 * 8, fast = 2 * 5 * 8, mlp = 2 * 6 * 8, learned_from = 28;
  CHECK(build(config)->learning_flops(29) == learned_from * (4 * (head + fast + mlp) + 2 * fast));
  CHECK(build(config)->learning_flops(32) == build(config)->learning_flops(29));
  CHECK(build(config)->learning_flops(4) == 0);
  config.ttt_rate = 0;
  CHECK(build(config)->learning_flops(29) == 0);
}

TEST_CASE("models/test-time training: what can not be is refused by name") {
  const auto message = [](auto change) {
    ModelConfig config = small_config();
    change(config);
    return error_of([&] { config.validate(); });
  };
  CHECK(message([](ModelConfig&) {}).empty());
  CHECK(message([](ModelConfig& c) { c.ttt_tokens = -1; }) ==
        "[model] ttt_tokens -1; allowed: 0 (off), or 1 to 31, less than the context, so that training sees "
        "updates");
  CHECK(message([](ModelConfig& c) { c.ttt_tokens = 32; }).starts_with("[model] ttt_tokens 32; allowed:"));
  CHECK(message([](ModelConfig& c) { c.ttt_rate = -0.1; }) ==
        "[model] ttt_rate -0.1; allowed: finite, 0 or more");
  CHECK(message([](ModelConfig& c) { c.ttt_rate = std::nan(""); }).starts_with("[model] ttt_rate nan"));
  CHECK(
      message([](ModelConfig& c) { c.ttt_hidden = -1; }).starts_with("[model] ttt_hidden -1; allowed: 0 to"));
  CHECK(message([](ModelConfig& c) { c.pattern = "sdpa*6,mesa,sdpa"; }).empty());
  CHECK(message([](ModelConfig& c) { c.pattern = "sdpa*7,mesa"; }) ==
        "[model] mixer mesa of layer 7 has no gradients while it is read piece by piece, as ttt_tokens needs "
        "behind "
        "layer 6");
  CHECK(message([](ModelConfig& c) {
          c.pattern = "mesa";
          c.ttt_rate = 0;
        }).empty());
  const auto model = build(small_config());
  LanguageModelState state = model->initial_state(1, 4);
  CHECK(error_of([&] { model->logits(ids_of(1, 3), &state); }) ==
        "[model] has no gradients while it learns and is read piece by piece; do that under NoGrad");
}

TEST_CASE("models/test-time training: configurations from before it are read") {
  ModelConfig config = small_config();
  config.ttt_tokens = 0;
  config.ttt_hidden = 0;
  nlohmann::json stored = config;
  for (const char* field : {"ttt_tokens", "ttt_rate", "ttt_hidden"}) stored.erase(field);
  CHECK(stored.get<ModelConfig>() == config);
  stored["ttt_tokens"] = "four";
  CHECK_THROWS_AS(stored.get<ModelConfig>(), Error);
  CHECK(small_config().resolved().ttt_hidden == 5);
  config = small_config();
  config.ttt_hidden = 0;
  CHECK(config.resolved().ttt_hidden == 6);  // as the MLPs
}

}  // namespace mixgrad
