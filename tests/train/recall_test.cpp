// The recall task: what is asked can be answered from the tokens alone, and a model learns to.
#include "train/recall.h"

#include <doctest/doctest.h>

#include <set>

#include "tests/train/programs.h"

namespace mixgrad {

TEST_CASE("train/recall: the answers are in the tokens") {
  const RecallTask task{.keys = 10, .values = 7};
  Generator generator(3, Stream::data);
  for (const int64_t pairs : {1, 3, 10}) {
    const Batch batch = draw_recall(task, pairs, 20, generator);
    CHECK(batch.length == 3 * pairs);
    CHECK(batch.inputs.size() == static_cast<size_t>(20 * 3 * pairs));
    CHECK(batch.target_tokens() == 20 * pairs);
    CHECK(solve_recall(task, batch) == batch.targets);
    for (int64_t row = 0; row < batch.rows; ++row) {
      std::set<int32_t> keys, asked;
      for (int64_t i = 0; i < pairs; ++i) {
        const int32_t* ids = batch.inputs.data() + row * batch.length;
        keys.insert(ids[2 * i]);
        asked.insert(ids[2 * pairs + i]);
        CHECK(ids[2 * i + 1] >= 10);
        CHECK(ids[2 * i + 1] < 17);
      }
      CHECK(keys.size() == static_cast<size_t>(pairs));
      CHECK(asked == keys);
    }
  }
}

TEST_CASE("train/recall: the solver notices a wrong answer and a key that was never told") {
  const RecallTask task{.keys = 4, .values = 2};
  const Batch batch{.inputs = {0, 4, 1, 5, 1, 0}, .targets = {}, .rows = 1, .length = 6};
  const int32_t none = ignored_target;
  CHECK(solve_recall(task, batch) == std::vector<int32_t>{none, none, none, none, 5, 4});
  const Batch unknown{.inputs = {0, 4, 1, 5, 3, 0}, .targets = {}, .rows = 1, .length = 6};
  CHECK(solve_recall(task, unknown) == std::vector<int32_t>{none, none, none, none, none, 4});
}

TEST_CASE("train/recall: impossible tasks are refused") {
  Generator generator;
  CHECK_THROWS_AS(draw_recall({.keys = 4, .values = 4}, 5, 1, generator), UsageError);
  RecallOptions options;
  options.pairs = {65};
  CHECK(error_of([&] { options.validate(); }) == "[recall] 65 pairs; allowed: 1 to 64, the number of keys");
}

TEST_CASE("train/recall: the delta rule learns it and a model without memory does not") {
  RecallOptions options;
  options.task = {.keys = 8, .values = 8};
  options.pairs = {2};
  options.model.layers = 2;
  options.model.heads = 2;
  options.model.width = 32;
  options.steps = 400;
  options.test_rows = 100;
  const auto accuracy = [&](const char* mixer) {
    return run_recall(options, parse_pattern(mixer, any_layers)[0], 1).accuracy[0];
  };
  // Chance is 1/8; who knows which values were told and not to which key they belong is right half of the
  // time.
  CHECK(accuracy("delta") > 0.95);
  CHECK(accuracy("sdpa(window=1)") < 0.2);
}

}  // namespace mixgrad
