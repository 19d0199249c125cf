// Runs of the training loop, in this process: repeatability, resuming, rows, refusals, and that it learns.
#include "train/trainer.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>

#include "nn/mixer.h"
#include "tensor/allocator.h"
#include "tensor/parallel.h"
#include "tests/train/programs.h"
#include "train/checkpoint.h"
#include "train/memory.h"
#include "train/saved_model.h"
#include "train/text.h"

namespace mixgrad {
namespace {

/// A folder with a text to learn.
struct Workplace {
  Workplace() { write_bytes(text, words_text(200)); }

  TrainOptions options(std::string_view run) const { return small_options(text, folder / run); }

  ScratchFolder folder;
  const std::filesystem::path text = folder / "text.txt";
};

std::vector<MetricsRow> rows_of(const TrainOptions& options) {
  return MetricsFile::read(options.out / "metrics.csv");
}

/// All rows without what differs from run to run: times and memory.
std::vector<MetricsRow> repeatable_rows(const TrainOptions& options) {
  std::vector<MetricsRow> rows = rows_of(options);
  for (MetricsRow& row : rows) row.step_ms = row.tokens_per_s = {}, row.peak_memory_bytes = {};
  return rows;
}

std::vector<double> train_losses(const TrainOptions& options) {
  std::vector<double> losses;
  for (const MetricsRow& row : rows_of(options)) losses.push_back(row.train_loss.value());
  return losses;
}

void check_same_files(const std::filesystem::path& a, const std::filesystem::path& b) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}) {
    CAPTURE(name);
    CHECK(file_bytes(a / name).size() > 0);
    CHECK(file_bytes(a / name) == file_bytes(b / name));
  }
}

/// Every file below a folder with its content.
std::map<std::string, std::string> snapshot(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    files[entry.path().string()] = entry.is_regular_file() ? file_bytes(entry.path()) : "";
  }
  return files;
}

TEST_CASE("train/trainer: a resumed run equals the uninterrupted one bit by bit") {
  const Workplace work;
  for (const char* mixer : {"gma(components=5,routing=3)", "sdpa"}) {
    CAPTURE(mixer);
    TrainOptions whole = work.options(str("whole-", mixer));
    whole.model.pattern = mixer;
    whole.model.dropout = 0.1;
    whole.accumulate = 2;
    whole.steps = 200;
    whole.eval_every = 70;
    whole.checkpoint_every = 100;
    train_quietly(whole);

    // As if it had been killed behind step 100 and later: its rows are there, its checkpoint is not.
    TrainOptions resumed = whole;
    resumed.out = work.folder / str("resumed-", mixer);
    resumed.resume = true;
    std::filesystem::copy(whole.out, resumed.out, std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(resumed.out / "step-00000200");
    CHECK(contains(train_quietly(resumed), "resumed   after step 100"));

    CHECK(repeatable_rows(resumed).size() == 200);
    CHECK(repeatable_rows(resumed) == repeatable_rows(whole));
    check_same_files(resumed.out / "step-00000200", whole.out / "step-00000200");
  }
}

TEST_CASE("train/trainer: a run on every device learns as on the CPU and goes on there") {
  const Workplace work;
  std::vector<double> on_cpu;
  for (const Device device : available_devices()) {
    CAPTURE(device);
    TrainOptions options = work.options(device == Device{} ? "cpu" : "gpu");
    options.device = str(device);
    options.steps = 4;
    train_quietly(options);
    options.resume = true;
    options.steps = 6;
    options.device = "cpu";
    train_quietly(options);
    const std::vector<double> losses = train_losses(options);
    REQUIRE(losses.size() == 6);
    if (device == Device{}) on_cpu = losses;
    // Sums in another order: 1e-6; a step that learns nothing 0.01.
    for (size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == doctest::Approx(on_cpu[i]).epsilon(1e-4));
  }
}

TEST_CASE("train/trainer: the number of threads changes no number") {
  const Workplace work;
  const int before = thread_count();
  TrainOptions one = work.options("one"), three = work.options("three");
  for (TrainOptions* options : {&one, &three}) {
    options->model.context = 64;
    options->batch = 8;
    options->model.dropout = 0.1;
    options->steps = 10;
  }
  three.threads = 3;
  train_quietly(one);
  train_quietly(three);
  set_thread_count(before);
  CHECK(repeatable_rows(three) == repeatable_rows(one));
  CHECK(file_bytes(three.out / "step-00000010/model.safetensors") ==
        file_bytes(one.out / "step-00000010/model.safetensors"));
}

TEST_CASE("train/trainer: evaluating and sampling change no training step") {
  const Workplace work;
  TrainOptions rarely = work.options("rarely"), often = work.options("often");
  for (TrainOptions* options : {&rarely, &often}) {
    options->model.dropout = 0.5;
    options->steps = 30;
  }
  often.eval_every = 5;
  often.sample_every = 14;
  train_quietly(rarely);
  CHECK(contains(train_quietly(often), "sample after step 14"));
  CHECK(train_losses(often) == train_losses(rarely));
  CHECK(rows_of(often).back().val_loss == rows_of(rarely).back().val_loss);
}

TEST_CASE("train/trainer: evaluation knows no dropout and repeats itself") {
  ModelConfig config{.vocabulary = 256, .layers = 1, .heads = 2, .width = 16, .context = 16};
  const auto loss_with = [&](double dropout) {
    config.dropout = dropout;
    Generator generator(1);
    Initialiser initialiser(DType::float32, {}, generator);
    LanguageModel model(config, initialiser);
    const Tokenizer tokenizer = Tokenizer::make("byte", "");
    const std::vector<int32_t> part = tokenizer.encode(words_text(30));
    const double first = evaluate(model, tokenizer, part, 3, 0).value().nats_per_token;
    CHECK(evaluate(model, tokenizer, part, 3, 0).value().nats_per_token == first);
    return first;
  };
  CHECK(loss_with(0.5) == loss_with(0));
}

TEST_CASE("train/trainer: a row for each step and the last one is evaluated once") {
  const Workplace work;
  TrainOptions options = work.options("run");
  options.steps = 25;
  options.eval_every = 10;
  options.accumulate = 3;
  CHECK(contains(train_quietly(options), "note: the sample can't be readable yet: "));
  const std::vector<MetricsRow> rows = rows_of(options);
  REQUIRE(rows.size() == 25);
  for (int64_t i = 0; i < 25; ++i) {
    const MetricsRow& row = rows[i];
    CHECK(row.step == i + 1);
    CHECK(row.tokens == (i + 1) * 2 * 16 * 3);
    CHECK(row.val_loss.has_value() == (row.step == 10 || row.step == 20 || row.step == 25));
    CHECK(row.val_bits_per_byte.has_value() == row.val_loss.has_value());
    CHECK(row.learning_rate == options.schedule(25).rate(i));
    CHECK((row.train_loss && row.grad_norm && row.step_ms && row.tokens_per_s && row.peak_memory_bytes));
  }
  // The loss of the first row is that of the batch before any update: an untrained model knows nothing.
  CHECK(rows[0].train_loss.value() == doctest::Approx(std::log(256)).epsilon(0.02));
  CHECK(rows[24].val_bits_per_byte.value() ==
        doctest::Approx(rows[24].val_loss.value() / std::numbers::ln2));  // a byte a token
  for (const char* file : {"run.json", "loss.png", "responsibilities.png", "step-00000025/manifest.json"}) {
    CAPTURE(file);
    CHECK(std::filesystem::file_size(options.out / file) > 100);
  }
}

TEST_CASE("train/trainer: the configuration and derived numbers are shown and stored") {
  const Workplace work;
  const TrainOptions options = work.options("run");
  const std::string output = train_quietly(options);
  const auto stored = nlohmann::ordered_json::parse(file_bytes(options.out / "run.json"));
  const nlohmann::ordered_json effective = options.effective();
  CHECK(stored["options"] == effective);
  for (const auto& [name, value] : effective.items()) {
    CAPTURE(name);
    CHECK(contains(output, str("--", name, "=")));
  }
  // Embedding 256 x 16, positions 16 x 16, 5 norms... counted by hand: the norms' weights are 3 x 16, the
  // mixer has q and k 16 x 6, v and out 16 x 16, means and variances 2 x 5 x 3 each, priors 2 x 5, the MLP
  // 2 x 16 x 64.
  const int64_t parameters = 4096 + 256 + 48 + 2 * 96 + 2 * 256 + 2 * 30 + 10 + 2048;
  CHECK(stored["derived"]["parameters"] == parameters);
  CHECK(stored["derived"]["tokens_per_step"] == 32);
  CHECK(stored["derived"]["total_steps"] == 20);
  CHECK(contains(output, str(parameters, " parameters")));
  // Per token, forward: two a weight of every matrix, and the mixture's 2 heads x 5 (6 x 3 + 4 x 8);
  // backward costs twice the forward pass.
  const double forward = 2 * (4096 + 2 * 96 + 2 * 256 + 2048) + 2 * 5 * (6 * 3 + 4 * 8);
  CHECK(stored["derived"]["flops_per_step"].get<double>() == doctest::Approx(3 * 32 * forward));
}

TEST_CASE("train/trainer: what is stored of a run tells how each of its steps was trained") {
  const Workplace work;
  TrainOptions options = work.options("run");
  options.steps = 10;
  train_quietly(options);
  const auto stored = [&] { return nlohmann::ordered_json::parse(file_bytes(options.out / "run.json")); };
  const std::string finished = file_bytes(options.out / "run.json");
  // A resume that has nothing to train changes nothing.
  options.resume = true;
  options.learning_rate = 0.01;
  train_quietly(options);
  CHECK(file_bytes(options.out / "run.json") == finished);
  // One that trains is a stretch of its own.
  options.steps = 30;
  options.checkpoint_every = 10;
  train_quietly(options);
  nlohmann::ordered_json stretches = stored()["stretches"];
  REQUIRE(stretches.size() == 2);
  CHECK(stored()["options"] == options.effective());
  CHECK(stretches[0]["options"]["lr"] == 1e-3);
  CHECK(stretches[0]["after_step"] == 0);
  CHECK(stretches[0]["to_step"] == 10);
  CHECK(stretches[1]["options"]["lr"] == 0.01);
  CHECK(stretches[1]["after_step"] == 10);
  CHECK(stretches[1]["to_step"] == 30);
  for (const auto& stretch : stretches) {
    CHECK(stretch["device"] == describe(parse_device("auto")));
    CHECK(stretch["options"]["precision"] == "f32");
    CHECK(contains(stretch["program"].get<std::string>(), "mixgrad "));
    CHECK(stretch["binary_crc32"] == stretches[0]["binary_crc32"]);
    CHECK(stretch["binary_crc32"].is_number());
  }
  // Who goes back to an earlier checkpoint leaves the steps behind it out.
  std::filesystem::remove_all(options.out / "step-00000030");
  options.learning_rate = 0.02;
  options.steps = 25;
  train_quietly(options);
  stretches = stored()["stretches"];
  REQUIRE(stretches.size() == 3);
  CHECK(stretches[1]["to_step"] == 20);
  CHECK(stretches[2]["after_step"] == 20);
  CHECK(stretches[2]["to_step"] == 25);
}

TEST_CASE("train/trainer: numbers that are no longer finite end the run and spare what was saved") {
  const Workplace work;
  TrainOptions options = work.options("run");
  options.steps = 10;
  train_quietly(options);
  const std::string picture = file_bytes(options.out / "loss.png");

  options.resume = true;
  options.steps = 200;
  options.learning_rate = 1e9;
  options.clip = 0;
  std::string message;
  {
    const CapturedOutput output;
    message = error_of([&] { Trainer(options).run(); });
  }
  CAPTURE(message);
  CHECK(contains(message, "[train] step "));
  CHECK(contains(message, "gradient norm "));
  CHECK(contains(message, "learning rate 9.9"));  // 1e9, a little way down the cosine
  CHECK(contains(message, "is intact"));
  const auto newest = newest_checkpoint(options.out);
  REQUIRE(newest.has_value());
  const Checkpoint checkpoint = load_checkpoint(*newest);
  CHECK(checkpoint.step == 10);
  CHECK(contains(message, "the checkpoint of step 10 is intact, its loss "));
  for (const auto& [name, tensor] : checkpoint.model) {
    for (const double value : tensor.to_vector()) REQUIRE(std::isfinite(value));
  }
  for (const MetricsRow& row : rows_of(options)) CHECK(std::isfinite(row.train_loss.value()));
  CHECK(file_bytes(options.out / "loss.png") == picture);
}

TEST_CASE("train/trainer: a run that diverges keeps its good checkpoints and says what it does not save") {
  const Workplace work;
  TrainOptions options = work.options("run");
  options.steps = 100;
  options.learning_rate = 1e-2;
  train_quietly(options);
  const auto good = snapshot(options.out / "step-00000100");

  // Finite losses far above a guess, ln 256 = 5.5: the gradients are clipped, the steps are not.
  options.resume = true;
  options.steps = 160;
  options.learning_rate = options.min_learning_rate = 10;
  options.checkpoint_every = 10;
  const std::string output = train_quietly(options);
  CHECK(rows_of(options).back().val_loss.value() > std::log(256));
  CHECK(contains(output, "note: after step 160 the loss is "));
  CHECK(contains(output, "not saved, the checkpoint of step 100 is intact, its loss "));
  CHECK(snapshot(options.out / "step-00000100") == good);
  CHECK(newest_checkpoint(options.out) == options.out / "step-00000100");
}

TEST_CASE("train/trainer: the best checkpoint stays whatever its age") {
  const Workplace work;
  // What validates has the letters of what is learned, but not its words: who knows these guesses worse.
  std::string letters;
  Generator generator(4);
  for (int i = 0; i < 311; ++i) letters += "abcd "[static_cast<int>(generator.uniform() * 5)];
  write_bytes(work.text, words_text(400) + letters);
  TrainOptions options = work.options("run");
  options.steps = 2000;
  options.learning_rate = 3e-2;
  options.batch = 8;
  options.checkpoint_every = 100;
  const std::string output = train_quietly(options);
  std::set<std::string> steps;
  for (const auto& entry : std::filesystem::directory_iterator(options.out)) {
    if (entry.is_directory()) steps.insert(entry.path().filename().string());
  }
  const nlohmann::json best = load_checkpoint(options.out / "step-00002000").state["best"];
  CAPTURE(best.dump());
  const int64_t step = best["step"];
  CHECK(step < 1900);
  CHECK(steps == std::set<std::string>{str("step-0000", step < 1000 ? "0" : "", step), "step-00001900",
                                       "step-00002000"});
  CHECK(contains(output, str("best checkpoint  that of step ", step)));
}

TEST_CASE("train/trainer: a first checkpoint that is no better than a guess is saved and said to be so") {
  const Workplace work;
  TrainOptions options = work.options("run");
  options.steps = 3;
  options.learning_rate = 1e3;
  const std::string output = train_quietly(options);
  CHECK(contains(output, "of a guess without training; saved all the same"));
  CHECK_FALSE(contains(output, "readable"));  // more steps would not help
  CHECK(newest_checkpoint(options.out) == options.out / "step-00000003");
}

TEST_CASE("train/trainer: a check for finite values names the step and the layer and the op") {
  const Workplace work;
  TrainOptions options = work.options("run");
  options.steps = 200;
  options.learning_rate = 1e9;
  options.clip = 0;
  options.check_finite = true;
  std::string message;
  {
    const CapturedOutput output;
    message = error_of([&] { Trainer(options).run(); });
  }
  CAPTURE(message);
  CHECK(message.starts_with("[check-finite] step "));
  CHECK(contains(message, ", blocks."));
  CHECK(contains(message, "values that are not finite"));
}

TEST_CASE("train/trainer: a checkpoint of another run is refused and nothing changes") {
  const Workplace work;
  const TrainOptions options = work.options("run");
  train_quietly(options);
  const auto before = snapshot(work.folder.path());
  const auto refusal = [&](auto change) {
    TrainOptions changed = options;
    changed.resume = true;
    change(changed);
    std::string line;
    try {
      Trainer trainer(changed);
    } catch (const UsageError& error) {
      line = error.what();
    }
    CHECK(snapshot(work.folder.path()) == before);
    return line;
  };
  const auto other_text = [&](TrainOptions& o) { o.data = work.folder / "other.txt"; };
  CHECK(contains(refusal([](TrainOptions& o) {
                   o.model.heads = 4;
                   o.model.pattern = "sdpa";
                 }),
                 "heads 2 and 4"));
  CHECK(contains(refusal([](TrainOptions& o) { o.model.dropout = 0.1; }), "dropout 0.0 and 0.1"));
  CHECK(contains(refusal([](TrainOptions& o) { o.tokenizer = "char"; }), "tokenizer byte and char"));
  CHECK(contains(refusal([](TrainOptions& o) { o.seed = 2; }), "seed \"1\" and \"2\""));
  CHECK(contains(refusal([](TrainOptions& o) { o.batch = 3; }), "batch 2 and 3"));
  CHECK(contains(refusal([](TrainOptions& o) { o.train_fraction = 0.8; }), "train-fraction 0.9 and 0.8"));
  CHECK(refusal([](TrainOptions&) {}).empty());

  TrainOptions changed = options;
  changed.resume = true;
  write_bytes(work.folder / "other.txt", words_text(200, 2));
  other_text(changed);
  const std::string message = error_of([&] { Trainer trainer(changed); });
  CHECK(contains(message, str("'", changed.data.string(), "' is not the text that ")));
}

TEST_CASE("train/trainer: heads are compared although every shape fits") {
  const Workplace work;
  TrainOptions options = work.options("run");
  options.model.pattern = "sdpa";
  train_quietly(options);
  options.resume = true;
  options.model.heads = 4;
  CHECK(contains(error_of([&] { Trainer trainer(options); }), "does not fit: heads 2 and 4"));
}

TEST_CASE("train/trainer: a folder that holds a run is not used again without being asked") {
  const Workplace work;
  const TrainOptions options = work.options("run");
  train_quietly(options);
  const auto before = snapshot(options.out);
  CHECK(contains(error_of([&] { Trainer trainer(options); }), "already holds a run; go on with --resume"));
  CHECK(snapshot(options.out) == before);
}

TEST_CASE("train/trainer: a finished run can be resumed for its results or with more steps") {
  const Workplace work;
  TrainOptions options = work.options("run");
  train_quietly(options);
  options.resume = true;
  CHECK(contains(train_quietly(options), "validation loss"));
  CHECK(rows_of(options).size() == 20);
  options.steps = 30;
  train_quietly(options);
  CHECK(rows_of(options).size() == 30);
  CHECK(rows_of(options).back().val_loss.has_value());
}

TEST_CASE("train/trainer: an evaluation that was interrupted is made up for") {
  const Workplace work;
  TrainOptions options = work.options("run");
  options.eval_every = 10;
  train_quietly(options);
  const std::vector<MetricsRow> whole = repeatable_rows(options);

  std::vector<MetricsRow> rows = rows_of(options);
  MetricsFile::cut_back(options.out / "metrics.csv", 19);
  rows.back().val_loss = rows.back().val_bits_per_byte = {};
  MetricsFile(options.out / "metrics.csv").append(rows.back());
  options.resume = true;
  train_quietly(options);
  CHECK(repeatable_rows(options) == whole);
}

TEST_CASE("train/trainer: what can't be read or is too short leaves no folder behind") {
  const Workplace work;
  const auto message = [&](const std::filesystem::path& data) {
    TrainOptions options = work.options("run");
    options.data = data;
    const std::string text = error_of([&] { Trainer(options).run(); });
    CHECK_FALSE(std::filesystem::exists(options.out));
    return text;
  };
  write_bytes(work.folder / "empty.txt", "");
  write_bytes(work.folder / "short.txt", std::string(100, 'a'));
  write_bytes(work.folder / "shorter.txt", std::string(17, 'a'));
  write_bytes(work.folder / "cut.gz", std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03\x4b", 11));
  CHECK(contains(message(work.folder / "none.txt"), "no such file"));
  CHECK(contains(message(work.folder / "empty.txt"), "empty"));
  CHECK(contains(message(work.folder.path()), "directory"));
  CHECK(contains(message(work.folder / "cut.gz"), "truncated"));
  CHECK(contains(message(work.folder / "short.txt"), "the validation part has 10 tokens; a context of 16"));
  CHECK(contains(message(work.folder / "shorter.txt"), "the training part has 15 tokens; a context of 16"));
}

TEST_CASE("train/trainer: what is probably not meant is noted and trained") {
  const Workplace work;
  TrainOptions options = work.options("plain");
  CHECK_FALSE(contains(train_quietly(options), "note: the text"));
  write_bytes(work.text, "\xEF\xBB\xBF" + words_text(200));
  options.out = work.folder / "mark";
  std::string output = train_quietly(options);
  CHECK(contains(output, "note: the text begins with a byte order mark"));
  CHECK_FALSE(contains(output, "CR LF"));
  write_bytes(work.text, words_text(100) + "\r\n" + words_text(100));
  options.out = work.folder / "lines";
  output = train_quietly(options);
  CHECK(contains(output, "note: the text has lines that end in CR LF"));
  CHECK_FALSE(contains(output, "byte order mark"));
  options.out = work.folder / "narrow";
  options.model.pattern = "sdpa";
  options.model.width = options.model.heads = 1;
  CHECK(contains(train_quietly(options), "note: with --width 1 "));
  for (const MetricsRow& row : rows_of(options)) CHECK(row.grad_norm.value() < 1e-2);
}

TEST_CASE("train/trainer: what can't fit into memory is refused before it is tried") {
  const Workplace work;
  write_bytes(work.text, words_text(8000));
  TrainOptions options = work.options("run");
  options.batch = 1000000;
  options.model.context = 4096;
  const std::string step = error_of([&] { Trainer trainer(options); });
  CAPTURE(step);
  CHECK(contains(step, "[memory] training needs at least "));
  CHECK(contains(step, "iB are available; reduce --batch"));
  options = work.options("run");
  options.model.width = 1 << 24;
  const std::string parameters = error_of([&] { Trainer trainer(options); });
  CAPTURE(parameters);
  CHECK(contains(parameters, "[memory] training needs at least 32768.1 TiB"));
  CHECK_FALSE(std::filesystem::exists(options.out));
}

TEST_CASE("train/trainer: the memory of a run is foreseen") {
  // Foreseen over measured. Right: 1.000; without the scratch memory of kernels, or the dropout masks: 0.9
  // and less.
  if (Allocator::of(Device{}).debug()) return;  // which rounds otherwise
  const Workplace work;
  write_bytes(work.text, words_text(1000));
  const auto check_foreseen = [&](TrainOptions options) {
    CAPTURE(options.model.pattern);
    CAPTURE(options.model.context);
    CAPTURE(options.resume);
    const int64_t held = Allocator::of(Device{}).stats().live_bytes;
    Allocator::of(Device{}).reset_peak();
    train_quietly(options);
    const auto measured = static_cast<double>(Allocator::of(Device{}).stats().peak_bytes - held);
    const auto derived = nlohmann::json::parse(file_bytes(options.out / "run.json"))["derived"];
    const double foreseen = derived["memory_bytes"].get<double>();
    CHECK(foreseen == doctest::Approx(measured).epsilon(0.01));
  };
  for (const MixerKind& kind : mixer_kinds()) {
    if (!kind.forms.causal) continue;
    TrainOptions options = work.options(kind.name + "-short");
    options.model.pattern = kind.name;
    options.model.context = 8;
    options.model.positions = "none";
    options.steps = 2;
    options.batch = 2;
    options.eval_batches = 1;
    check_foreseen(options);  // the sample, or a resumed run's checkpoint, can be the largest

    options.resume = true;
    options.steps = 3;
    check_foreseen(options);

    options.resume = false;
    options.out = work.folder / (kind.name + "-long");
    options.model.context = 300;
    options.model.dropout = 0.1;
    options.batch = 7;
    options.accumulate = 3;
    check_foreseen(options);
  }
}

TEST_CASE("train/trainer: a disk that is full or read-only spares the earlier checkpoint") {
  const Workplace work;
  TrainOptions options = work.options("run");
  train_quietly(options);
  const auto saved = snapshot(options.out / "step-00000020");
  options.resume = true;
  options.steps = 40;
  std::string message;
  {
    const CapturedOutput output;
    const DiskLimit limit(8000);  // more than run.json and metrics.csv, less than a checkpoint
    message = error_of([&] { Trainer(options).run(); });
  }
  CAPTURE(message);
  CHECK(contains(message, "File too large"));
  CHECK(snapshot(options.out / "step-00000020") == saved);
  CHECK(newest_checkpoint(options.out) == options.out / "step-00000020");
  train_quietly(options);
  CHECK(newest_checkpoint(options.out) == options.out / "step-00000040");

  options = work.options("text.txt/run");
  CHECK(contains(error_of([&] { Trainer(options).run(); }), "Not a directory"));
  options.out = "/proc/run";
  CHECK(contains(error_of([&] { Trainer(options).run(); }), "cannot create '/proc/run'"));
}

TEST_CASE("train/trainer: a run of so many minutes plans its steps and keeps to them") {
  const Workplace work;
  write_bytes(work.text, words_text(100000));
  TrainOptions options = work.options("run");
  options.minutes = 0.005;
  options.steps = most_steps;
  options.eval_batches = 0;  // 2187 batches, for which a fifth of 0.3 s is not enough
  const std::string output = train_quietly(options);
  CHECK(contains(output, "planned "));
  CHECK(contains(output, " instead of "));
  const std::vector<MetricsRow> planned = repeatable_rows(options);
  CHECK(planned.back().val_loss.has_value());
  // The plan stays when the run is resumed, its evaluations included, and other minutes are other steps.
  options.resume = true;
  train_quietly(options);
  CHECK(repeatable_rows(options) == planned);
  CHECK(contains(train_quietly(options), "validation loss  " + str(*planned.back().val_loss)));
  options.more_minutes = true;
  train_quietly(options);
  CHECK(rows_of(options).size() > planned.size());
}

/// Mean loss in nats of a bigram model with add-one smoothing, counted on one part, on the targets of
/// another.
double bigram_loss(const Split& parts, int64_t vocabulary) {
  std::vector<double> pairs(vocabulary * vocabulary, 1), firsts(vocabulary, static_cast<double>(vocabulary));
  for (size_t i = 0; i + 1 < parts.train.size(); ++i) {
    ++pairs[parts.train[i] * vocabulary + parts.train[i + 1]];
    ++firsts[parts.train[i]];
  }
  double nats = 0;
  for (size_t i = 0; i + 1 < parts.validation.size(); ++i) {
    const int32_t a = parts.validation[i], b = parts.validation[i + 1];
    nats -= std::log(pairs[a * vocabulary + b] / firsts[a]);
  }
  return nats / static_cast<double>(parts.validation.size() - 1);
}

void check_beats_bigram(const char* mixer) {
  const Workplace work;
  write_bytes(work.text, words_text(2000));
  TrainOptions options = work.options("run");
  options.model.pattern = mixer;
  options.tokenizer = "char";
  options.model.width = 32;
  options.batch = 8;
  options.steps = 600;
  options.learning_rate = 1e-2;
  options.eval_batches = 0;
  CHECK_FALSE(contains(train_quietly(options), "readable"));  // it is
  const SavedModel saved = load_model(options.out, {});
  const Split parts = split_tokens(saved.tokenizer.encode(read_text(work.text)), options.model.context);
  const double bigram = bigram_loss(parts, saved.tokenizer.vocabulary_size());
  const double trained = rows_of(options).back().val_loss.value();
  CAPTURE(bigram);
  CAPTURE(trained);
  // The words are drawn from eight, ln 8 / 7 = 0.30 nats a letter; the last letter alone tells 1.46. Trained:
  // gma 0.8, sdpa 1.0; a model that sees no further than the last letter can't be below the bigram's.
  CHECK(bigram > 1.4);
  CHECK(trained < 0.8 * bigram);
}

TEST_CASE("train/trainer: what gma learns beats a bigram model") {
  check_beats_bigram("gma(components=16,routing=8)");
}

TEST_CASE("train/trainer: what sdpa learns beats a bigram model") { check_beats_bigram("sdpa"); }

}  // namespace
}  // namespace mixgrad
