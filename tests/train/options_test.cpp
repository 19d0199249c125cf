// The options of `train`: what is accepted, what is refused and in which words, what is stored.
#include "train/options.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tensor/error.h"
#include "tests/train/programs.h"

namespace mixgrad {
namespace {

bool parse_words(std::vector<std::string> words, TrainOptions& options) {
  words.insert(words.begin(), "train");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return parse_train_options(static_cast<int>(argv.size()), argv.data(), options);
}

TrainOptions parsed(const std::vector<std::string>& words) {
  TrainOptions options;
  REQUIRE(parse_words(std::vector<std::string>{"--data=x"} + words, options));
  return options;
}

/// The line with which a command line is refused as a mistake of the user.
std::string refusal(const std::vector<std::string>& words) {
  try {
    TrainOptions options;
    parse_words(std::vector<std::string>{"--data=x"} + words, options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

/// The same for the text of a config file.
std::string config_refusal(const std::string& text) {
  const ScratchFolder folder;
  write_bytes(folder / "train.conf", text);
  return refusal({"--config", (folder / "train.conf").string()});
}

/// Every option that --help tells, by each of its names.
std::set<std::string> known_options() {
  const CapturedOutput output;
  TrainOptions options;
  REQUIRE(!parse_words({"--help"}, options));
  const std::string help = output.text();
  const std::regex name("--([a-z0-9-]+)");
  std::set<std::string> names;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  -")) continue;
    const std::string declaration = line.substr(0, line.find(' ', 2));
    for (std::sregex_iterator match(declaration.begin(), declaration.end(), name), end; match != end;
         ++match) {
      names.insert((*match)[1]);
    }
  }
  return names;
}

TEST_CASE("train/options: every documented option exists") {
  const std::set<std::string> known = known_options();
  for (const char* name :
       {"data",         "tokenizer",        "mixer",        "pattern",    "layers",         "heads",
        "width",        "context",          "batch",        "accumulate", "steps",          "minutes",
        "lr",           "min-lr",           "warmup",       "beta1",      "beta2",          "weight-decay",
        "clip",         "dropout",          "positions",    "seed",       "tie-embeddings", "eval-every",
        "eval-batches", "checkpoint-every", "sample-every", "out",        "resume",         "device",
        "threads",      "precision",        "config",       "help",       "version"}) {
    CAPTURE(name);
    CHECK(known.contains(name));
  }
}

TEST_CASE("train/options: what is stored names every option that makes the run what it is") {
  std::set<std::string> expected = known_options();
  // How it is run, and second names.
  for (const char* other : {"help", "help-mixers", "version", "config", "out", "resume", "mixer",
                            "learning-rate", "no-conv", "no-bias", "no-tie-embeddings"}) {
    CHECK(expected.erase(other) == 1);
  }
  std::set<std::string> stored;
  const nlohmann::ordered_json effective = parsed({}).effective();
  for (const auto& [name, value] : effective.items()) stored.insert(name);
  CHECK(stored == expected);
}

TEST_CASE("train/options: what is stored parses back to the same") {
  const TrainOptions options =
      parsed({"--lr=0.1", "--bias", "--no-tie-embeddings", "--seed=18446744073709551615", "--min-lr=1e-7",
              "--pattern=gma(components=7)*2, sdpa*2", "--positions=sinusoidal", "--minutes=0.1"});
  std::vector<std::string> words;
  const nlohmann::ordered_json effective = options.effective();
  for (const auto& [name, value] : effective.items()) {
    if (name != "data")
      words.push_back(str("--", name, "=", value.is_string() ? value.get<std::string>() : value.dump()));
  }
  CHECK(parsed(words).effective() == options.effective());
  CHECK(options.seed == 18446744073709551615u);
  CHECK(options.model.bias);
  CHECK_FALSE(options.model.tie_embeddings);
}

TEST_CASE("train/options: the command line wins over the config file and the file over the defaults") {
  const ScratchFolder folder;
  write_bytes(folder / "train.conf",
              "# what to learn\n"
              "lr = 0.5   # a comment\n"
              "warmup=7\n"
              "\n"
              "pattern = \"gma(components=3) # 1, sdpa\"  # quotes keep a #\n"
              "mlp-hidden = 12\r\n"
              "bias = true\n"
              "tie-embeddings = false\n");
  const std::string config = (folder / "train.conf").string();
  CHECK(contains(refusal({"--config", config}), "'gma(components=3) # 1, sdpa'"));
  const TrainOptions options = parsed({"--warmup", "9", "--config", config, "--mixer", "sdpa"});
  CHECK(options.learning_rate == 0.5);
  CHECK(options.warmup == 9);
  CHECK(options.model.pattern == "sdpa");
  CHECK(options.model.mlp_hidden == 12);
  CHECK(options.model.bias);
  CHECK_FALSE(options.model.tie_embeddings);
  CHECK(options.batch == TrainOptions{}.batch);
}

TEST_CASE("train/options: unknown names are answered with the nearest") {
  CHECK(refusal({"--learning_rte=1e-3"}) ==
        "[options] unknown option '--learning_rte=1e-3'; did you mean '--learning-rate'?");
  CHECK(refusal({"--stepps", "3"}) == "[options] unknown option '--stepps'; did you mean '--steps'?");
  CHECK(refusal({"--qqqqqqqqq"}) == "[options] unknown option '--qqqqqqqqq'; see --help");
  CHECK(refusal({"text.txt"}) == "[options] unexpected argument 'text.txt'; see --help");
  CHECK(config_refusal("lr = 1\nlearning_rte = 1e-3\n") ==
        "[config] line 2: unknown key 'learning_rte'; did you mean 'learning-rate'?");
  CHECK(refusal({"--check"}) == "[options] unknown option '--check'; did you mean '--checkpoint-every'?");
  CHECK(contains(refusal({"--mixer", "gna"}), "linformer (not causal)"));
  CHECK(contains(refusal({"--mixer", "gna"}), "unknown mixer 'gna'; known: sdpa, gma"));
  CHECK(contains(refusal({"--mixer", "gma(component=3)"}), "did you mean 'components'?"));
}

TEST_CASE("train/options: a byte order mark before a config file is no part of it") {
  CHECK(contains(config_refusal("\xEF\xBB\xBFlr = -1\n"), "--lr: -1"));
  CHECK(contains(config_refusal("\xEF\xBB\xBF# lr\n\xEF\xBB\xBFlr = 1\n"), "line 2: unknown key"));
}

TEST_CASE("train/options: the help is grouped and no line of it is longer than 100 columns") {
  for (const char* word : {"--help", "--help-mixers"}) {
    const CapturedOutput output;
    TrainOptions options;
    REQUIRE(!parse_words({word}, options));
    const std::string help = output.text();
    CHECK(
        contains(help, std::string_view(word) == "--help" ? "\nOptimisation:\n" : "  gma: Gaussian Mixture"));
    CHECK(contains(help, "Gaussian") == (std::string_view(word) == "--help-mixers"));
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(line);
      CHECK(line.size() <= 100);
    }
  }
}

TEST_CASE("train/options: config files with mistakes are refused with the line") {
  CHECK(contains(config_refusal("[model]\nlr = 1\n"), "[config] line 1: section [model]"));
  CHECK(contains(config_refusal("model.lr = 1\n"), "[config] line 1: unknown key 'model.lr'"));
  CHECK(contains(config_refusal("lr = 1\nwarmup = 3\nlr = 1\n"), "line 3: key 'lr' is given a second time"));
  CHECK(contains(config_refusal("mixer = gma\npattern = gma\n"), "key 'pattern' is given a second time"));
  CHECK(contains(config_refusal("lr 1\n"), "line 1: 'lr 1'; allowed: key = value"));
  CHECK(contains(config_refusal("lr = 1 2\n"), "--lr: 1 2; allowed: a number"));
  CHECK(contains(config_refusal("lr =\n"), "--lr: nothing; allowed: a number"));
  CHECK(contains(config_refusal("bias = maybe\n"), "--bias: maybe; allowed: true or false"));
  CHECK(contains(config_refusal("tokenizer = \"byte\n"), "line 1: the quote"));
  CHECK(contains(config_refusal("tokenizer = \"byte\" char\n"), "'char' behind the value"));
  CHECK(contains(config_refusal("help = true\n"), "on the command line only"));
  CHECK(contains(refusal({"--config", "/nowhere/train.conf"}), "/nowhere/train.conf"));
}

TEST_CASE("train/options: malformed and repeated values are refused") {
  const auto refused = [](const std::string& word, const std::string& line) {
    CAPTURE(word);
    CHECK(refusal({word}) == "[options] --" + line);
  };
  refused("--lr=1e-3x", "lr: 1e-3x; allowed: a number");
  refused("--steps=3.5", "steps: 3.5; allowed: a whole number");
  refused("--steps=1e3", "steps: 1e3; allowed: a whole number");
  refused("--steps=99999999999999999999", "steps: 99999999999999999999; allowed: a whole number");
  refused("--seed=-1", "seed: -1; allowed: a whole number, not negative");
  refused("--lr=1e999", "lr: 1e999; allowed: a number");
  refused("--beta1=1", "beta1: 1; allowed: 0 or more, below 1");
  CHECK(refusal({"--lr=1", "--lr=2"}) == "[options] --lr is given 2 times; allowed: once");
  CHECK(refusal({"--bias", "--no-bias"}) == "[options] --bias is given 2 times; allowed: once");
  CHECK(contains(refusal({"--mixer=gma", "--pattern=gma"}), "given 2 times"));
  CHECK(contains(refusal({"--steps"}), "--steps"));
}

TEST_CASE("train/options: numbers out of range and not finite are refused") {
  for (const char* word : {"--dropout=-0.1",
                           "--dropout=1",
                           "--dropout=nan",
                           "--lr=-1",
                           "--lr=nan",
                           "--lr=inf",
                           "--min-lr=-0.5",
                           "--min-lr=nan",
                           "--min-lr=1",
                           "--minutes=-1",
                           "--minutes=inf",
                           "--train-fraction=1",
                           "--beta1=1",
                           "--beta2=-0.1",
                           "--weight-decay=-1",
                           "--clip=nan",
                           "--batch=0",
                           "--batch=99999999",
                           "--accumulate=0",
                           "--steps=0",
                           "--warmup=-2",
                           "--eval-every=0",
                           "--eval-every=-5",
                           "--eval-batches=-1",
                           "--checkpoint-every=0",
                           "--sample-every=-1",
                           "--log-every=0",
                           "--threads=-1",
                           "--threads=5000000000",
                           "--layers=0",
                           "--heads=0",
                           "--width=0",
                           "--context=0",
                           "--mlp-hidden=-1"}) {
    CAPTURE(word);
    const std::string line = refusal({word});
    CHECK(contains(line, "allowed: "));
    CHECK(line.find('\n') == line.npos);
  }
}

TEST_CASE("train/options: impossible sizes are refused with what is allowed") {
  CHECK(contains(refusal({"--width=128", "--heads=3"}),
                 "width 128 is not a multiple of heads 3; allowed heads"));
  CHECK(contains(refusal({"--layers=4", "--pattern=gma*3"}), "names 3 layers"));
  CHECK(contains(refusal({"--pattern=gma("}), "[pattern] 'gma('"));
  CHECK(contains(refusal({"--pattern=gma(components=0)"}), "components = 0; allowed: whole numbers from 1"));
  CHECK(contains(refusal({"--positions=absolute"}), "allowed: auto, learned, sinusoidal, rope, none"));
  CHECK(contains(refusal({"--mixer=gma", "--positions=rope"}), "no rotary positions"));
  CHECK(contains(refusal({"--mixer=sdpa", "--positions=rope", "--width=6", "--heads=2"}), "must be even"));
  CHECK(contains(refusal({"--norm=batch"}), "allowed: layer, rms"));
  TrainOptions options;
  CHECK(contains(error_of([&] { parse_words({}, options); }), "--data is missing"));
}

TEST_CASE("train/options: minutes alone set no other limit and steps still do") {
  CHECK(parsed({}).steps == 2000);
  CHECK(parsed({"--minutes=2"}).steps == most_steps);
  CHECK(parsed({"--minutes=2", "--steps=70"}).steps == 70);
}

TEST_CASE("train/options: the learning rate at the ends of the schedule") {
  TrainOptions options;
  options.learning_rate = 0.5;
  options.min_learning_rate = 0.125;
  constexpr int64_t end = 100;
  for (const int64_t warmup : {0, 1, 10, 100, 1000}) {
    CAPTURE(warmup);
    options.warmup = warmup;
    const CosineSchedule schedule = options.schedule(end);
    const int64_t peak_step = std::max<int64_t>(0, std::min(warmup, end) - 1);
    double highest = 0;
    for (int64_t step = 0; step < end; ++step) {
      const double rate = schedule.rate(step);
      CHECK(rate > 0);
      CHECK(rate <= 0.5);
      if (step > std::max<int64_t>(peak_step, 0)) CHECK(rate <= schedule.rate(step - 1));
      highest = std::max(highest, rate);
    }
    CHECK(schedule.rate(peak_step) == 0.5);
    CHECK(highest == 0.5);
    CHECK(schedule.rate(end) == 0.125);
    CHECK(schedule.rate(end + 100) == 0.125);
  }
  options.warmup = 4;
  const CosineSchedule schedule = options.schedule(end);
  CHECK(schedule.rate(0) == 0.125);
  CHECK(schedule.rate(1) == 0.25);
  CHECK(schedule.rate(4) == 0.5);
  CHECK(schedule.rate(52) == doctest::Approx(0.3125));  // half-way down
  options.min_learning_rate = -1;
  CHECK(options.schedule(end).rate(end) == doctest::Approx(0.05));
}

TEST_CASE("train/options: the warm-up is a tenth of a short run unless it is given") {
  const TrainOptions options = parsed({});
  const auto peak_step = [&](int64_t total) {
    const CosineSchedule schedule = options.schedule(total);
    int64_t step = 0;
    while (schedule.rate(step) < options.learning_rate) ++step;
    return step;
  };
  CHECK(peak_step(93) == 8);
  CHECK(peak_step(1000) == 99);
  CHECK(peak_step(100000) == 99);
  CHECK(peak_step(5) == 0);
  CHECK(parsed({"--warmup=70"}).schedule(93).rate(0) == doctest::Approx(options.learning_rate / 70));
}

TEST_CASE("train/options: a length that is given to a resumed run beats the one that is stored") {
  const ScratchFolder folder;
  const auto resumed = [&](const std::vector<std::string>& first, const std::vector<std::string>& more) {
    const nlohmann::json stored = {{"options", parsed(first).effective()}};
    write_bytes(folder / "run.json", stored.dump());
    return parsed(std::vector<std::string>{"--resume", "--out", folder.path().string()} + more);
  };
  const TrainOptions same = resumed({"--minutes=2", "--steps=70"}, {});
  CHECK(same.minutes == 2);
  CHECK(same.steps == 70);
  CHECK_FALSE(same.more_minutes);
  const TrainOptions steps = resumed({"--minutes=2"}, {"--steps=70"});
  CHECK(steps.minutes == 0);
  CHECK(steps.steps == 70);
  const TrainOptions minutes = resumed({"--steps=70"}, {"--minutes=3"});
  CHECK(minutes.minutes == 3);
  CHECK(minutes.steps == most_steps);
  CHECK(minutes.more_minutes);
  CHECK(resumed({"--minutes=2"}, {"--minutes=2"}).more_minutes);
  const TrainOptions both = resumed({"--steps=70"}, {"--minutes=3", "--steps=80"});
  CHECK(both.minutes == 3);
  CHECK(both.steps == 80);
  CHECK(resumed({"--minutes=2"}, {"--minutes=0"}).steps == TrainOptions{}.steps);
  CHECK(resumed({"--lr=0.5"}, {"--clip=2"}).learning_rate == 0.5);
}

TEST_CASE("train/options: a run can only be resumed where there is one") {
  const ScratchFolder folder;
  CHECK(contains(refusal({"--resume", "--out", folder.path().string()}), "[resume] no run to resume"));
  write_bytes(folder / "run.json", "{\"options\": 3");
  TrainOptions options;
  CHECK(contains(error_of([&] {
                   parse_words({"--resume", "--out", folder.path().string()}, options);
                 }),
                 "is damaged"));
}

}  // namespace
}  // namespace mixgrad
