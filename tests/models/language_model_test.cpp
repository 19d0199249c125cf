// The decoder: its configuration, its parameters, and reading piece by piece.
#include "models/language_model.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/softmax.h"
#include "autograd/tape.h"
#include "nn/optimizer.h"

namespace mixgrad {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.vocabulary = 11;
  config.layers = 2;
  config.heads = 2;
  config.width = 8;
  config.context = 16;
  config.pattern = "gma(components=5,routing=3),sdpa";
  return config;
}

std::unique_ptr<LanguageModel> build(const ModelConfig& config, DType dtype = DType::float64) {
  Generator generator(4);
  Initialiser initialiser(dtype, Device{}, generator);
  return std::make_unique<LanguageModel>(config, initialiser);
}

Tensor ids_of(const std::vector<int32_t>& ids) {
  return Tensor::from(ids, {1, static_cast<int64_t>(ids.size())});
}

const std::vector<int32_t> text = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

TEST_CASE("model: an impossible configuration is refused by the name of its field") {
  const auto message = [](auto change) {
    ModelConfig config = small_config();
    change(config);
    try {
      config.validate();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message([](ModelConfig&) {}).empty());
  CHECK(message([](ModelConfig& c) { c.heads = 3; }) ==
        "[model] width 8 is not a multiple of heads 3; allowed heads: the divisors of the width");
  CHECK(message([](ModelConfig& c) { c.layers = 0; }) == "[model] layers 0; allowed: 1 to 1024");
  CHECK(message([](ModelConfig& c) { c.width = -8; }).starts_with("[model] width -8; allowed:"));
  CHECK(message([](ModelConfig& c) { c.dropout = 1; }) == "[model] dropout 1; allowed: 0 <= dropout < 1");
  CHECK(message([](ModelConfig& c) { c.dropout = std::nan(""); }).starts_with("[model] dropout nan"));
  CHECK(message([](ModelConfig& c) { c.norm = "batch"; }) == "[model] norm 'batch'; allowed: layer, rms");
  CHECK(message([](ModelConfig& c) { c.positions = "rope"; }) ==
        "[model] mixer gma has no rotary positions; allowed: learned, sinusoidal, none");
  CHECK(message([](ModelConfig& c) { c.pattern = "gma*3"; }).starts_with("[pattern] 'gma*3' names 3 layers"));
}

TEST_CASE("model: a configuration survives JSON and tells where two differ") {
  ModelConfig config = small_config();
  config.dropout = 0.1;
  config.bias = true;
  const nlohmann::json stored = config;
  CHECK(stored.get<ModelConfig>() == config);
  CHECK(first_difference(config, config).empty());
  ModelConfig other = config;
  other.heads = 4;  // every shape still fits
  CHECK(first_difference(config, other) == "heads 2 and 4");
  for (const auto& [field, value] : stored.items()) {  // none is forgotten
    nlohmann::json changed = stored;
    changed[field] = value.is_string()    ? nlohmann::json("other")
                     : value.is_boolean() ? nlohmann::json(!value.get<bool>())
                                          : nlohmann::json(value.get<double>() + 1);
    CHECK(first_difference(config, changed.get<ModelConfig>()).starts_with(field));
  }
  nlohmann::json damaged = stored;
  damaged.erase("width");
  CHECK_THROWS_AS(damaged.get<ModelConfig>(), Error);
  damaged = stored;
  damaged["layers"] = "two";
  CHECK_THROWS_AS(damaged.get<ModelConfig>(), Error);
}

TEST_CASE("model: resolving writes out what was left to defaults") {
  ModelConfig config = small_config();
  config.layers = 4;
  const ModelConfig resolved = config.resolved();
  CHECK(resolved.pattern == "gma(components=5,routing=3),sdpa,gma(components=5,routing=3),sdpa");
  CHECK(resolved.mlp_hidden == 32);
  CHECK(resolved.positions == "learned");
  CHECK(resolved.resolved() == resolved);
}

TEST_CASE("model: parameters have fixed names and decay where they should") {
  ModelConfig config = small_config();
  config.bias = true;
  const auto model = build(config);
  std::set<std::string> decaying, other;
  std::vector<std::string> order;
  for (const Parameter& parameter : model->parameters()) {
    (parameter.decays ? decaying : other).insert(parameter.name);
    order.push_back(parameter.name);
  }
  CHECK(order.front() == "tokens.weight");
  CHECK(order.back() == "final_norm.bias");
  CHECK(decaying.contains("tokens.weight"));
  CHECK(decaying.contains("blocks.0.mixer.q.weight"));
  CHECK(decaying.contains("blocks.1.mlp.down.weight"));
  for (const char* name : {"blocks.0.mixer.mean", "blocks.0.mixer.omega", "blocks.0.mixer.alpha",
                           "blocks.1.mixer_norm.weight", "blocks.1.mlp.up.bias", "final_norm.bias"}) {
    CHECK_MESSAGE(other.contains(name), name);
  }
  CHECK(decaying.size() + other.size() == order.size());
}

TEST_CASE("model: a tied embedding is one parameter with the sum of both gradients") {
  ModelConfig tied = small_config();
  ModelConfig untied = small_config();
  untied.tie_embeddings = false;
  const auto one = build(tied);
  const auto two = build(untied);
  CHECK(two->parameter_count() - one->parameter_count() == tied.vocabulary * tied.width);
  // The same values on both sides: the untied model's table and head are set to the tied model's.
  std::map<std::string, Tensor> values;
  for (const Parameter& parameter : one->parameters()) values[parameter.name] = parameter.variable->value();
  for (const Parameter& parameter : two->parameters()) {
    const std::string source = parameter.name == "head.weight" ? "tokens.weight" : parameter.name;
    parameter.variable->value().copy_from(values.at(source));
  }
  for (const auto& model : {one.get(), two.get()}) backward(model->loss(ids_of(text), ids_of(text)));
  std::map<std::string, std::vector<double>> gradients;
  for (const Parameter& parameter : two->parameters())
    gradients[parameter.name] = parameter.variable->grad().to_vector();
  std::vector<double> sum = gradients.at("tokens.weight");
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradients.at("head.weight")[i];
  CHECK(largest_difference(one->parameters()[0].variable->grad().to_vector(), sum) < 1e-14);
}

TEST_CASE("model: reading piece by piece gives the logits of reading at once") {
  for (const char* positions : {"learned", "sinusoidal", "none"}) {
    ModelConfig config = small_config();
    config.positions = positions;
    config.conv = config.positions == "none";
    const auto model = build(config);
    const NoGrad no_grad;
    const std::vector<double> expected = model->logits(ids_of(text)).value().to_vector();
    for (const size_t first : {size_t{1}, size_t{5}, text.size()}) {
      LanguageModelState state = model->initial_state(1, 16);
      std::vector<double> logits =
          model->logits(ids_of({text.begin(), text.begin() + first}), &state).value().to_vector();
      for (size_t t = first; t < text.size(); ++t) {
        const std::vector<double> next = model->logits(ids_of({text[t]}), &state).value().to_vector();
        logits.insert(logits.end(), next.begin(), next.end());
      }
      CHECK(largest_difference(logits, expected) < 1e-13);
      CHECK(state.position == static_cast<int64_t>(text.size()));
    }
  }
}

TEST_CASE("model: rotary positions are relative") {
  ModelConfig config = small_config();
  config.pattern = "sdpa";
  config.positions = "rope";
  const auto model = build(config);
  const NoGrad no_grad;
  const std::vector<double> expected = model->logits(ids_of(text)).value().to_vector();
  LanguageModelState state = model->initial_state(1, 4);
  std::vector<double> logits;
  for (const int32_t id : text) {
    const std::vector<double> next = model->logits(ids_of({id}), &state).value().to_vector();
    logits.insert(logits.end(), next.begin(), next.end());
  }
  CHECK(largest_difference(logits, expected) < 1e-13);
}

TEST_CASE("model: a learned context ends and says so") {
  const auto model = build(small_config());
  std::vector<int32_t> longer = text;
  longer.push_back(1);
  CHECK_THROWS_WITH_AS(model->logits(ids_of(longer)),
                       "[model] 17 tokens are more than the learned context of 16", Error);
  CHECK_THROWS_AS(model->logits(ids_of({11})), Error);  // no such id
}

TEST_CASE("model: dropout acts in training alone and draws from its generator") {
  ModelConfig config = small_config();
  config.dropout = 0.5;
  const auto model = build(config);
  const NoGrad no_grad;
  const auto loss = [&](Generator* generator) {
    return model->loss(ids_of(text), ids_of(text), generator).value().item();
  };
  Generator first(1, Stream::dropout), same(1, Stream::dropout);
  const double once = loss(&first);
  CHECK(once == loss(&same));
  CHECK(once != loss(&first));  // the generator has moved on
  CHECK(loss(nullptr) == loss(nullptr));
  config.dropout = 0;
  CHECK(build(config)->loss(ids_of(text), ids_of(text)).value().item() == loss(nullptr));
}

namespace {

/// A model whose blocks add nothing, and whose head gives what the final norm gives.
std::unique_ptr<LanguageModel> model_of_embeddings(ModelConfig config) {
  config.width = config.vocabulary = 12;
  config.norm = "rms";
  config.tie_embeddings = false;
  auto model = build(config);
  for (const Parameter& parameter : model->parameters()) {
    Tensor& value = parameter.variable->value();
    if (parameter.name == "head.weight") {
      value.fill(0);
      for (int64_t i = 0; i < 12; ++i) value.data<double>()[i * 12 + i] = 1;
    } else if (parameter.name.ends_with("mixer.out.weight") || parameter.name.ends_with("mlp.down.weight")) {
      value.fill(0);
    }
  }
  return model;
}

}  // namespace

TEST_CASE("model: sinusoids turn by position / 10000^(2i/D)") {
  ModelConfig config = small_config();
  config.positions = "sinusoidal";
  const auto model = model_of_embeddings(config);
  for (const Parameter& parameter : model->parameters()) {
    if (parameter.name == "tokens.weight") parameter.variable->value().fill(0);
  }
  const NoGrad no_grad;
  const std::vector<double> logits = model->logits(ids_of(text)).value().to_vector();
  // sin^2 + cos^2 = 1, so that the norm divides by sqrt(1/2).
  const double factor = 1 / std::sqrt(0.5 + 1e-6);
  for (size_t t = 0; t < text.size(); ++t) {
    for (int i = 0; i < 6; ++i) {
      const double angle = static_cast<double>(t) / std::pow(10000, 2 * i / 12.0);
      CHECK(logits[t * 12 + i] == doctest::Approx(factor * std::sin(angle)).epsilon(1e-12));
      CHECK(logits[t * 12 + 6 + i] == doctest::Approx(factor * std::cos(angle)).epsilon(1e-12));
    }
  }
}

TEST_CASE("model: dropout acts behind the embedding and on both branches of every block") {
  ModelConfig config = small_config();
  config.positions = "none";
  config.dropout = 0.5;
  const auto model = model_of_embeddings(config);
  Variable tokens;
  for (const Parameter& parameter : model->parameters()) {
    if (parameter.name == "tokens.weight") tokens = *parameter.variable;
  }
  const NoGrad no_grad;
  Generator generator(3, Stream::dropout), same(3, Stream::dropout);
  const double loss = model->loss(ids_of(text), ids_of(text), &generator).value().item();
  const Variable dropped = dropout(embedding(ids_of(text), tokens), 0.5, same);
  CHECK(loss ==
        doctest::Approx(cross_entropy(rms_norm(dropped), ids_of(text)).value().item()).epsilon(1e-12));
  const uint64_t once = same.position();
  CHECK(generator.position() == (1 + 2 * static_cast<uint64_t>(config.layers)) * once);
}

TEST_CASE("model: overfits a single batch") {
  const auto model = build(small_config(), DType::float32);
  const Tensor inputs = ids_of({text.begin(), text.end() - 1});
  const Tensor targets = ids_of({text.begin() + 1, text.end()});
  AdamW optimizer(model->parameters(), {});
  const double before = model->loss(inputs, targets).value().item();
  for (int step = 0; step < 150; ++step) {
    model->zero_grad();
    backward(model->loss(inputs, targets));
    optimizer.step(1e-2);
  }
  CHECK(before > 2);  // log 11 = 2.4
  CHECK(model->loss(inputs, targets).value().item() < 0.1);
}

}  // namespace mixgrad
