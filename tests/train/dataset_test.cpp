// The split and the batches: sizes at their limits, every start reached, every target once.
#include "train/dataset.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tensor/error.h"

namespace mixgrad {
namespace {

using Tokens = std::vector<int32_t>;

/// 0, 1, 2, ...: a token says where it stands.
Tokens counting(int64_t size) {
  Tokens tokens(static_cast<size_t>(size));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

/// The message of the UsageError that run() throws; "" when it throws none.
template <class Function>
std::string usage_error(Function run) {
  try {
    run();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

/// The first token of every row: with counting tokens, where the row starts.
Tokens starts_of(const Batch& batch) {
  Tokens starts;
  for (int64_t row = 0; row < batch.rows; ++row) starts.push_back(batch.inputs[row * batch.length]);
  return starts;
}

}  // namespace

TEST_CASE("train/dataset: the split cuts at the fraction rounded down and loses nothing") {
  const Split split = split_tokens(counting(109), 4);
  CHECK(split.train == counting(98));  // int(98.1)
  CHECK(split.validation.size() == 11);
  Tokens whole = split.train;
  whole.insert(whole.end(), split.validation.begin(), split.validation.end());
  CHECK(whole == counting(109));
  CHECK(split_tokens(counting(10), 2, 0.5).train.size() == 5);
  CHECK(split_tokens(counting(1115394), 256).train.size() ==
        1003854);  // nanoGPT's prepare.py on tiny Shakespeare
}

TEST_CASE("train/dataset: a part too short is named with both numbers") {
  const int64_t T = 8;
  for (const int64_t size : {int64_t{0}, int64_t{1}, T}) {
    CHECK(usage_error([&] { possible_starts("training", size, T); }) ==
          str("[dataset] the training part has ", size,
              " tokens; a context of 8 needs at least 9: take a longer text or a smaller context"));
    CHECK(usage_error([&] { sample_batch(counting(size), 1, T, 0, 0); }) != "");
  }
  CHECK(possible_starts("training", T + 1, T) == 1);
  CHECK(possible_starts("training", T + 2, T) == 2);

  CHECK(usage_error([&] { split_tokens(counting(20), T, 0.1); }).find("the training part has 2 tokens") !=
        std::string::npos);
  CHECK(usage_error([&] { split_tokens(counting(80), T); }).find("the validation part has 8 tokens") !=
        std::string::npos);
  CHECK(usage_error([&] { split_tokens({}, T); }).find("the training part has 0 tokens") !=
        std::string::npos);
  CHECK(split_tokens(counting(90), T).validation.size() == 9);
}

TEST_CASE("train/dataset: fractions and sizes out of range are refused") {
  for (const double fraction : {0.0, 1.0, -0.5, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK(usage_error([&] { split_tokens(counting(100), 4, fraction); }).find("train fraction") !=
          std::string::npos);
  }
  const Tokens tokens = counting(100);
  const int64_t huge = std::numeric_limits<int64_t>::max();
  CHECK(usage_error([&] { split_tokens(tokens, 0); }) != "");
  CHECK(usage_error([&] { split_tokens(tokens, huge); }).find("needs at least 9223372036854775808") !=
        std::string::npos);
  for (const int64_t bad : {int64_t{0}, int64_t{-1}}) {
    CHECK(usage_error([&] { sample_batch(tokens, bad, 4, 0, 0); }) != "");
    CHECK(usage_error([&] { sample_batch(tokens, 4, bad, 0, 0); }) != "");
    CHECK(usage_error([&] { EvaluationBatches(tokens, bad, 4); }) != "");
    CHECK(usage_error([&] { EvaluationBatches(tokens, 4, bad); }) != "");
    CHECK(usage_error([&] { EvaluationBatches(tokens, 4, 4, bad); }) != "");
  }
  CHECK(usage_error([&] { sample_batch(tokens, huge / 2, 4, 0, 0); }).find("too large") != std::string::npos);
  CHECK(usage_error([&] { EvaluationBatches(Tokens{1}, 1, 4); }).find("has 1 tokens") != std::string::npos);
  CHECK(usage_error([&] { EvaluationBatches(Tokens{}, 1, 4); }).find("has 0 tokens") != std::string::npos);
}

TEST_CASE("train/dataset: targets are the inputs shifted by one") {
  const Tokens tokens = counting(1000);
  const Batch batch = sample_batch(tokens, 16, 33, 1, 2);
  CHECK(batch.rows == 16);
  CHECK(batch.length == 33);
  CHECK(batch.target_tokens() == 16 * 33);
  const Tokens starts = starts_of(batch);
  for (int64_t row = 0; row < 16; ++row) {
    for (int64_t t = 0; t < 33; ++t) {
      REQUIRE(batch.inputs[row * 33 + t] == starts[row] + t);
      REQUIRE(batch.targets[row * 33 + t] == starts[row] + t + 1);
    }
  }
}

TEST_CASE("train/dataset: every start is reached about equally often and the last token is a target") {
  const int64_t T = 8;
  CHECK(starts_of(sample_batch(counting(T + 1), 64, T, 5, 0)) == Tokens(64, 0));
  CHECK(sample_batch(counting(T + 1), 1, T, 5, 0).targets.back() == T);

  const Batch two = sample_batch(counting(T + 2), 64, T, 5, 0);
  const Tokens starts = starts_of(two);
  CHECK(std::set<int32_t>(starts.begin(), starts.end()) == std::set<int32_t>{0, 1});
  CHECK(*std::max_element(two.targets.begin(), two.targets.end()) == T + 1);

  // 20 starts, 40000 draws: the sum of (count - 2000)^2 / 2000 has mean 19 and is below 43.8 in 99.9 % of
  // cases. Here it is 13.5; if the last start were never drawn it would be above 2000.
  std::vector<double> counts(20);
  for (const int32_t start : starts_of(sample_batch(counting(20 + T), 40000, T, 7, 0))) counts.at(start) += 1;
  double chi_square = 0;
  for (const double count : counts) chi_square += (count - 2000) * (count - 2000) / 2000;
  CAPTURE(chi_square);
  CHECK(chi_square < 43.8);
}

TEST_CASE("train/dataset: a batch is a pure function of seed and index") {
  const Tokens tokens = counting(100000);
  const auto draw = [&](uint64_t seed, uint64_t step) {
    return starts_of(sample_batch(tokens, 8, 64, seed, step));
  };
  const Tokens first = draw(1337, 41);
  CHECK(draw(1337, 41) == first);
  CHECK(draw(1338, 41) != first);
  CHECK(draw(1337 + (uint64_t{1} << 32), 41) != first);
  CHECK(draw(1337, 42) != first);
  CHECK(draw(1337, 41 + (uint64_t{1} << 32)) != first);

  // The running number of the sequence decides, so two batches of 8 are one of 16.
  Tokens both = draw(1337, 0);
  const Tokens second = draw(1337, 1);
  both.insert(both.end(), second.begin(), second.end());
  CHECK(starts_of(sample_batch(tokens, 16, 64, 1337, 0)) == both);
}

TEST_CASE("train/dataset: the starts of a seed never change") {
  // Philox4x32-10 with key 1337 and counters {0..3, 0, 1, 0}, worked out apart from this code:
  // (word0 * 2^32 + word1) * 99936 / 2^64.
  CHECK(starts_of(sample_batch(counting(100000), 4, 64, 1337, 0)) == Tokens{60440, 17617, 3622, 66455});
}

TEST_CASE("train/dataset: evaluation has every token but the first as target exactly once") {
  for (const int64_t size : {2, 3, 8, 9, 10, 16, 17, 18, 64, 65, 66, 100}) {
    for (const int64_t B : {1, 3, 100}) {
      CAPTURE(size);
      CAPTURE(B);
      const int64_t T = 8;
      const Tokens tokens = counting(size);
      const EvaluationBatches batches(tokens, B, T);
      Tokens targets;
      for (int64_t index = 0; index < batches.size(); ++index) {
        const Batch batch = batches[index];
        REQUIRE(batch.length == T);
        REQUIRE(batch.rows >= 1);
        REQUIRE(batch.rows <= B);
        REQUIRE(batch.inputs.size() == static_cast<size_t>(batch.rows * T));
        REQUIRE(batch.targets.size() == batch.inputs.size());
        if (index + 1 < batches.size()) CHECK(batch.target_tokens() == B * T);
        for (size_t i = 0; i < batch.targets.size(); ++i) {
          if (batch.targets[i] == ignored_target) {
            REQUIRE(batch.inputs[i] == 0);
          } else {
            REQUIRE(batch.inputs[i] == batch.targets[i] - 1);
            targets.push_back(batch.targets[i]);
          }
        }
      }
      CHECK(targets == Tokens(tokens.begin() + 1, tokens.end()));
      CHECK(Tokens(batches.targets().begin(), batches.targets().end()) == targets);
    }
  }
}

TEST_CASE("train/dataset: evaluation of the first batches only counts their targets") {
  const Tokens tokens = counting(50);  // 49 targets: 6 windows of 8 and one of 1; 4 batches of 2 rows
  CHECK(EvaluationBatches(tokens, 2, 8).size() == 4);
  CHECK(EvaluationBatches(tokens, 2, 8)[3].rows == 1);
  CHECK(EvaluationBatches(tokens, 2, 8)[3].target_tokens() == 1);
  const EvaluationBatches first(tokens, 2, 8, 2);
  CHECK(first.size() == 2);
  CHECK(first.targets().size() == 32);
  CHECK(first.targets().back() == 32);
  CHECK(first[1].targets == EvaluationBatches(tokens, 2, 8)[1].targets);
  CHECK(EvaluationBatches(tokens, 2, 8, 99).size() == 4);
  CHECK(EvaluationBatches(tokens, 2, 8, 99).targets().size() == 49);
  CHECK_THROWS_AS(first[2], Error);
  CHECK_THROWS_AS(first[-1], Error);
}

TEST_CASE("train/dataset: huge batch sizes of an evaluation mean all windows at once") {
  const Tokens tokens = counting(50);
  const EvaluationBatches all(tokens, std::numeric_limits<int64_t>::max() / 8, 8);
  CHECK(all.size() == 1);
  CHECK(all[0].rows == 7);
  CHECK(all[0].target_tokens() == 49);
}

}  // namespace mixgrad
