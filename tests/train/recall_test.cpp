// The recall task: what is asked can be answered from the tokens alone, and a model learns to.
#include "train/recall.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
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

TEST_CASE("train/recall: keys that are told again count with their last value") {
  const RecallTask task{.keys = 5, .values = 50, .tellings = 3};
  Generator generator(4, Stream::data);
  const Batch batch = draw_recall(task, 5, 20, generator);
  CHECK(batch.length == 35);
  CHECK(batch.target_tokens() == 100);
  CHECK(solve_recall(task, batch) == batch.targets);
  int64_t changed = 0;
  for (int64_t row = 0; row < 20; ++row) {
    const int32_t* ids = batch.inputs.data() + row * 35;
    std::map<int32_t, std::set<int32_t>> told;
    for (int64_t i = 0; i < 15; ++i) told[ids[2 * i]].insert(ids[2 * i + 1]);
    CHECK(told.size() == 5);
    for (const auto& [key, values] : told) changed += values.size() > 1;
  }
  CHECK(changed > 95);  // of 100, other values than the last were told before
}

TEST_CASE("train/recall: impossible tasks are refused") {
  Generator generator;
  CHECK_THROWS_AS(draw_recall({.keys = 4, .values = 4}, 5, 1, generator), UsageError);
  RecallOptions options;
  options.pairs = {33};
  CHECK(error_of([&] { options.validate(); }) == "[recall] 33 pairs; allowed: 1 to 32, the number of keys");
}

TEST_CASE("train/recall: what can't be is refused before anything is trained") {
  RecallOptions options;
  options.task.tellings = int64_t{1} << 62;
  CHECK(contains(error_of([&] { options.validate(); }), "--tellings"));
  options = {};
  options.batch = 1'000'000'000;
  CHECK(contains(error_of([&] { options.validate(); }), "--batch: 1000000000; allowed: 1 to 65536"));
  options = {};
  options.model.heads = 2;
  options.model.width = 10;
  const auto refusal = [&](const char* mixer) {
    return error_of([&] { check_recall(options, parse_pattern(mixer, any_layers)[0]); });
  };
  CHECK(refusal("delta").empty());
  CHECK(refusal("retention") == "[retention] rotation turns pairs: the key size 5 must be even");
  options.task.tellings = 3;
  options.pairs = {32};
  options.batch = 65536;
  options.model.width = 128;
  CHECK(contains(refusal("delta"), "[recall] delta: a step needs "));  // hundreds of GiB
}

TEST_CASE("train/recall: a model is asked sequences that it was not trained on") {
  RecallOptions options;
  options.task = {.keys = 4, .values = 4};
  options.pairs = {3};
  options.model.layers = 1;
  options.model.heads = 2;
  options.model.width = 16;
  options.steps = 1;
  options.learning_rate = 1e-30;  // the model stays as it was drawn
  options.test_rows = 500;
  const MixerChoice mixer = parse_pattern("delta", any_layers)[0];
  ModelConfig config = options.model;
  config.vocabulary = options.task.vocabulary();
  config.context = options.task.length(3);
  config.pattern = mixer.text();
  Generator parameters(5, Stream::parameters);
  Initialiser initialiser(DType::float32, Device{}, parameters);
  LanguageModel model(config, initialiser);
  const auto accuracy_on = [&](Stream stream) {
    const NoGrad no_grad;
    Generator generator(5, stream);
    const Batch batch = draw_recall(options.task, 3, options.test_rows, generator);
    const Tensor ids = Tensor::from(batch.inputs, {batch.rows, batch.length});
    const std::vector<double> logits = model.logits(ids).value().to_vector();
    int64_t right = 0;
    for (size_t place = 0; place < batch.targets.size(); ++place) {
      if (batch.targets[place] == ignored_target) continue;
      const auto row = logits.begin() + static_cast<int64_t>(place) * config.vocabulary;
      right += std::max_element(row, row + config.vocabulary) - row == batch.targets[place];
    }
    return static_cast<double>(right) / static_cast<double>(batch.target_tokens());
  };
  const double accuracy = run_recall(options, mixer, 5).accuracy[0];
  CHECK(accuracy == accuracy_on(Stream::sampling));
  CHECK(accuracy != accuracy_on(Stream::data));  // of 1500 questions the same number right by chance: 2 %
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

TEST_CASE("train/recall program: a model that diverges has its cell and the others are trained") {
  const ScratchFolder folder;
  const std::string json = (folder / "all.json").string();
  // sdpa comes through this learning rate, mamba2 does not: its decays are exponentials of what it learns.
  const Outcome outcome = run(
      "recall", {"--mixers=mamba2,sdpa", "--pairs=2", "--keys=4", "--values=4", "--steps=6", "--seeds=2",
                 "--batch=2", "--test-rows=4", "--lr=1e2", "--threads=1", "--device=cpu", "--json", json});
  CAPTURE(outcome.out);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.err, "[recall] mamba2, seed 1, step "));
  CHECK(contains(outcome.err, "[recall] mamba2, seed 2, step "));
  std::istringstream lines(outcome.out);
  std::map<std::string, std::string> row_of;
  for (std::string line; std::getline(lines, line);) row_of[line.substr(0, line.find(' '))] = line;
  CHECK(contains(row_of["mamba2"], "            diverged  2 of 2 seeds diverged"));
  CHECK(contains(row_of["sdpa"], "(0."));
  CHECK_FALSE(contains(row_of["sdpa"], "diverged"));
  const auto stored = nlohmann::json::parse(file_bytes(json));
  CHECK(contains(stored["mixers"][0]["seeds"][1]["failure"].get<std::string>(), "mamba2, seed 2"));
  CHECK(stored["mixers"][1]["seeds"][0]["accuracy"].size() == 1);
}

}  // namespace mixgrad
