// An evaluation counts every target once, in tokens and in the bytes that they stand for.
#include "train/evaluation.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <numbers>

#include "models/language_model.h"

namespace mixgrad {

TEST_CASE("train/evaluation: bits are per byte of the targets, whatever the length of characters") {
  const std::string text =
      "a\xc3\xa9 b\xe6\xbc\xa2 a\xe6\xbc\xa2\xe6\xbc\xa2";  // of one, two and three bytes
  const Tokenizer tokenizer = Tokenizer::make("char", text);
  const std::vector<int32_t> tokens = tokenizer.encode(text);
  REQUIRE(tokens.size() == 9);
  ModelConfig config;
  config.vocabulary = tokenizer.vocabulary_size();
  config.layers = 1;
  config.heads = 1;
  config.width = 4;
  config.context = 3;
  config.pattern = "sdpa";
  Generator generator(4);
  Initialiser initialiser(DType::float64, Device{}, generator);
  LanguageModel model(config, initialiser);
  const auto result = evaluate(model, tokenizer, tokens, 2, 0);
  REQUIRE(result.has_value());
  // The targets are all characters but the first: 8, of 15 bytes. The inputs are 13 bytes.
  CHECK(result->tokens == 8);
  CHECK(result->bits_per_byte ==
        doctest::Approx(result->nats_per_token * 8 / std::numbers::ln2 / 15).epsilon(1e-12));
}

}  // namespace mixgrad
