#include "models/generate.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace mixgrad {
namespace {

std::vector<double> frequencies(const std::vector<double>& logits, const SamplingOptions& options) {
  constexpr int draws = 20000;
  Generator generator(9, Stream::sampling);
  std::vector<double> counts(logits.size());
  for (int i = 0; i < draws; ++i) counts[sample_token(logits, options, generator)] += 1.0 / draws;
  return counts;
}

std::unique_ptr<LanguageModel> tiny_model(const std::string& positions) {
  ModelConfig config;
  config.vocabulary = 7;
  config.layers = 1;
  config.heads = 1;
  config.width = 6;
  config.context = 8;
  config.positions = positions;
  config.pattern = "gma(components=3,routing=2)";
  Generator generator(2);
  Initialiser initialiser(DType::float32, Device{}, generator);
  return std::make_unique<LanguageModel>(config, initialiser);
}

std::vector<int32_t> continuation(LanguageModel& model, const std::vector<int32_t>& prompt, int64_t tokens) {
  Generator generator(1, Stream::sampling);
  std::vector<int32_t> drawn;
  generate(model, prompt, {.tokens = tokens}, generator, [&](int32_t token) { drawn.push_back(token); });
  return drawn;
}

}  // namespace

TEST_CASE("sampling: temperature 0 and nearly 0 take the most probable token") {
  for (const double temperature : {0.0, 1e-9}) {
    CHECK(frequencies({1, 2, 3, 4}, {.temperature = temperature})[3] == doctest::Approx(1));
  }
  Generator generator;
  CHECK(sample_token({5, 5, 1}, {.temperature = 0}, generator) == 0);
}

TEST_CASE("sampling: top-k keeps the k most probable") {
  // Of logits 3 and 4: probabilities 0.268941 and 0.731059; 20000 draws spread by 0.003.
  const std::vector<double> top2 = frequencies({1, 2, 3, 4}, {.temperature = 1, .top_k = 2});
  CHECK(top2[0] == 0);
  CHECK(top2[1] == 0);
  CHECK(std::abs(top2[2] - 0.268941) < 0.013);
  CHECK(frequencies({1, 2, 3, 4}, {.top_k = 1})[3] == doctest::Approx(1));
  CHECK(frequencies({1, 2}, {.top_k = 100})[0] > 0.2);
}

TEST_CASE("sampling: a high temperature is nearly uniform") {
  for (const double share : frequencies({1, 2, 3, 4}, {.temperature = 1e9}))
    CHECK(std::abs(share - 0.25) < 0.013);
}

TEST_CASE("sampling: options out of range and logits that are not finite are refused") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_AS(SamplingOptions{.temperature = -1}.validate(), UsageError);
  CHECK_THROWS_AS(SamplingOptions{.temperature = nan}.validate(), UsageError);
  CHECK_THROWS_AS(SamplingOptions{.tokens = -1}.validate(), UsageError);
  CHECK_THROWS_AS(SamplingOptions{.top_k = -2}.validate(), UsageError);
  Generator generator;
  CHECK_THROWS_AS(sample_token({nan, nan}, {}, generator), Error);
}

TEST_CASE("generation: prompts and texts may be longer than a learned context") {
  const auto model = tiny_model("learned");
  for (const size_t length : {1, 7, 8, 9, 80}) {
    CAPTURE(length);
    const std::vector<int32_t> prompt(length, 2);
    const std::vector<int32_t> drawn = continuation(*model, prompt, 24);  // three contexts
    CHECK(drawn.size() == 24);
    CHECK(drawn == continuation(*model, prompt, 24));
  }
  CHECK(continuation(*model, {1}, 0).empty());
  CHECK_THROWS_AS(continuation(*model, {}, 3), UsageError);
}

TEST_CASE("generation: steps give what reading the whole text anew would give") {
  const auto model = tiny_model("none");
  const std::vector<int32_t> drawn = continuation(*model, {1, 2, 3}, 20);
  // The same draws, each from the logits of the whole text so far.
  const NoGrad no_grad;
  Generator generator(1, Stream::sampling);
  std::vector<int32_t> whole = {1, 2, 3};
  for (const int32_t expected : drawn) {
    const auto length = static_cast<int64_t>(whole.size());
    const Tensor logits = model->logits(Tensor::from(whole, {1, length})).value().narrow(1, length - 1, 1);
    const int32_t token = sample_token(logits.to_vector(), {}, generator);
    CHECK(token == expected);
    whole.push_back(token);
  }
}

}  // namespace mixgrad
