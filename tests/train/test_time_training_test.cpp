// Runs of a model that learns while it reads: resumed, foreseen in memory, checked, and generating.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tensor/allocator.h"
#include "tests/train/programs.h"
#include "train/metrics.h"

namespace mixgrad {
namespace {

struct Workplace {
  Workplace() { write_bytes(text, words_text(400)); }

  /// Of eight blocks the last two learn.
  TrainOptions options(std::string_view run) const {
    TrainOptions options = small_options(text, folder / run);
    options.model.layers = 8;
    options.model.pattern = "gma(components=5,routing=3)*6,sdpa*2";
    options.model.ttt_tokens = 4;
    options.model.ttt_hidden = 9;
    options.check_finite = true;
    options.steps = 6;
    options.checkpoint_every = 4;
    return options;
  }

  ScratchFolder folder;
  const std::filesystem::path text = folder / "text.txt";
};

}  // namespace

TEST_CASE("train/test-time training: a run that is resumed ends as if it had not been interrupted") {
  const Workplace work;
  const TrainOptions whole = work.options("whole");
  train_quietly(whole);
  TrainOptions resumed = work.options("resumed");
  resumed.resume = true;
  std::filesystem::copy(whole.out, resumed.out, std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(resumed.out / "step-00000006");
  train_quietly(resumed);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    CAPTURE(name);
    CHECK(file_bytes(whole.out / "step-00000006" / name) == file_bytes(resumed.out / "step-00000006" / name));
  }
  CHECK(MetricsFile::read(resumed.out / "metrics.csv")[5].val_loss ==
        MetricsFile::read(whole.out / "metrics.csv")[5].val_loss);

  resumed.model.ttt_rate = 0.5;
  const CapturedOutput output;
  const std::string message = error_of([&] { Trainer(resumed).run(); });
  CHECK(contains(message, "does not fit: ttt_rate 1.0 and 0.5"));
}

TEST_CASE("train/test-time training: the memory of a run is foreseen") {
  if (Allocator::of(Device{}).debug()) return;  // which rounds otherwise
  const Workplace work;
  for (const int64_t context : {8, 150}) {
    CAPTURE(context);
    TrainOptions options = work.options(str("context-", context));
    options.model.context = context;
    options.model.dropout = 0.1;
    options.check_finite = false;
    options.accumulate = 3;
    const int64_t held = Allocator::of(Device{}).stats().live_bytes;
    Allocator::of(Device{}).reset_peak();
    train_quietly(options);
    const auto measured = static_cast<double>(Allocator::of(Device{}).stats().peak_bytes - held);
    const auto derived = nlohmann::json::parse(file_bytes(options.out / "run.json"))["derived"];
    // Right: 1.000; of the longer context without the updates: 0.94.
    CHECK(derived["memory_bytes"].get<double>() == doctest::Approx(measured).epsilon(0.01));
  }
}

TEST_CASE("train/test-time training: the programs train and generate and refuse") {
  const Workplace work;
  const std::vector<std::string> arguments = small_arguments(work.text, work.folder / "run");
  for (const auto& [argument, part] :
       {std::pair{"--ttt-tokens=16", "[model] ttt_tokens 16; allowed: 0 (off), or"},
        {"--ttt-rate=-1", "[model] ttt_rate -1; allowed: finite, 0 or more"},
        {"--ttt-hidden=-1", "[model] ttt_hidden -1; allowed: 0 to"}}) {
    const Outcome outcome = run("train", arguments + std::vector<std::string>{argument});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 2);
    CHECK(is_one_line(outcome.err));
    CHECK(contains(outcome.err, part));
  }
  const Outcome trained = run("train", arguments + std::vector<std::string>{"--steps=3", "--ttt-tokens=5"});
  CHECK(trained.code == 0);
  CHECK(contains(trained.out, "--ttt-tokens=5"));
  const Outcome text =
      run("generate", {"--model", (work.folder / "run").string(), "--tokens=40", "--prompt=ab"});
  CHECK(text.code == 0);
}

}  // namespace mixgrad
