// The program `train` as its user meets it: exit codes, signals, kill, pipes and terminals, full disks.
#include <doctest/doctest.h>
#include <poll.h>
#include <pty.h>

#include <nlohmann/json.hpp>

#include "tests/train/programs.h"
#include "train/checkpoint.h"
#include "train/metrics.h"

namespace mixgrad {
namespace {

struct Workplace {
  Workplace() { write_bytes(text, words_text(400)); }

  std::vector<std::string> arguments(std::string_view run) const {
    return small_arguments(text, folder / run);
  }

  ScratchFolder folder;
  const std::filesystem::path text = folder / "text.txt";
};

std::string parameters_of(const std::filesystem::path& checkpoint) {
  return file_bytes(checkpoint / "model.safetensors") + file_bytes(checkpoint / "optimizer.safetensors");
}

std::vector<std::optional<double>> losses_of(const std::filesystem::path& run) {
  std::vector<std::optional<double>> losses;
  for (const MetricsRow& row : MetricsFile::read(run / "metrics.csv")) {
    losses.push_back(row.train_loss);
    losses.push_back(row.val_loss);
  }
  return losses;
}

TEST_CASE("train/train program: mistakes end with code 2 and failures with 1 and one line each") {
  const Workplace work;
  const auto check_refused = [&](int code, const std::vector<std::string>& more, std::string_view part) {
    const Outcome outcome = run("train", work.arguments("run") + more);
    CAPTURE(outcome.err);
    CHECK(outcome.code == code);
    CHECK(is_one_line(outcome.err));
    CHECK(contains(outcome.err, part));
    CHECK_FALSE(std::filesystem::exists(work.folder / "run"));
  };
  check_refused(2, {"--learning_rte=1"}, "did you mean '--learning-rate'?");
  check_refused(2, {"--clip=nan"}, "--clip: nan");
  check_refused(2, {"--device=cuda:99"}, "'cuda:99' is not available: ");
  check_refused(2, {"--device=tpu"}, "unknown device 'tpu'");
  check_refused(2, {"--tokenizer=word"}, "word");
  check_refused(2, {"--train-fraction=0.999"}, "--train-fraction: 0.999");
  check_refused(2, {"--resume"}, "no run to resume");
  std::string pattern = "gma";
  for (int i = 0; i < 2400; ++i) pattern += ",gma";
  const Outcome long_pattern = run("train", {"--data", work.text.string(), "--mixer", pattern});
  CHECK(contains(long_pattern.err, "names 2401 layers"));
  CHECK(long_pattern.err.size() < 1000);
  const Outcome missing =
      run("train", {"--data", (work.folder / "none").string(), "--out=" + (work.folder / "run").string()});
  CHECK(missing.code == 1);
  CHECK(is_one_line(missing.err));
  const Outcome memory =
      run("train", {"--data", work.text.string(), "--batch=1000000", "--context=128", "--width=64",
                    "--layers=1", "--threads=1", "--out=" + (work.folder / "run").string()});
  CAPTURE(memory.err);
  CHECK(memory.code == 1);
  CHECK(is_one_line(memory.err));
  CHECK(contains(memory.err, "are available"));
  CHECK_FALSE(std::filesystem::exists(work.folder / "run"));
}

TEST_CASE("train/train program: a limit on the addresses of the process is named in MiB") {
#if defined(__SANITIZE_ADDRESS__)
  return;  // which needs more addresses than any such limit
#endif
  const Workplace work;
  const std::string command =
      str("ulimit -v 400000; exec '", program("train").string(),
          "' --threads 1 --layers 4 --width 256 --mixer sdpa ", "--context 128 --batch 32 --data '",
          work.text.string(), "' --out '", (work.folder / "run").string(), "' 2> '",
          (work.folder / "err").string(), "' > /dev/null");
  const int status = std::system(command.c_str());
  const std::string message = file_bytes(work.folder / "err");
  CAPTURE(message);
  CHECK(WEXITSTATUS(status) == 1);
  CHECK(is_one_line(message));
  CHECK(contains(message, "this process may have 390 MiB"));
}

TEST_CASE("train/train program: help and version are printed and nothing else is done") {
  for (const char* name : {"train", "generate"}) {
    CHECK(run(name, {"--help"}).code == 0);
    const Outcome version = run(name, {"--version"});
    CHECK(version.code == 0);
    for (const char* part : {"mixgrad ", "BLAS", "zlib", "CUDA"}) CHECK(contains(version.out, part));
  }
  for (const char* name : {"train", "recall", "bench"}) {
    const Outcome mixers = run(name, {"--help-mixers"});
    CHECK(mixers.code == 0);
    CHECK(contains(mixers.out, "gma: Gaussian Mixture Attention"));
  }
}

TEST_CASE("train/train program: a pipe gets plain lines") {
  const Workplace work;
  const Outcome outcome =
      run("train", work.arguments("run") +
                       std::vector<std::string>{"--steps=30", "--eval-every=15", "--log-every=10"});
  CHECK(outcome.code == 0);
  CHECK(outcome.err.empty());
  CHECK_FALSE(contains(outcome.out.substr(0, outcome.out.find("---- sample")), "\r"));
  CHECK_FALSE(contains(outcome.out, "\033"));
  for (const char* step :
       {"step    1/30  loss ", "step   10/30  loss ", "step   15/30  loss ", "step   30/30  loss "}) {
    CAPTURE(step);
    CHECK(contains(outcome.out, step));
  }
  CHECK_FALSE(contains(outcome.out, "step   14/30"));
  for (const char* part :
       {"  lr ", "  norm ", " ms  ", " tokens/s  ", "KiB  eta ", "val loss ", "bits/byte "}) {
    CAPTURE(part);
    CHECK(contains(outcome.out, part));
  }
  CHECK(contains(outcome.out, (work.folder / "run/step-00000030").string()));
  CHECK(contains(outcome.out, (work.folder / "run/loss.png").string()));
}

TEST_CASE("train/train program: a terminal gets one live line no wider than itself") {
  const Workplace work;
  std::vector<std::string> words = std::vector<std::string>{program("train").string()} +
                                   work.arguments("run") +
                                   std::vector<std::string>{"--steps=30", "--eval-every=15"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  winsize size{.ws_row = 24, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  REQUIRE(child >= 0);
  if (child == 0) {
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  std::string output;
  char block[4096];
  for (ssize_t got; (got = ::read(terminal, block, sizeof block)) > 0;) output.append(block, got);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  CHECK(status == 0);
  int64_t live_lines = 0;
  for (size_t at = 0; (at = output.find("\r\033[Kstep", at)) != output.npos; ++live_lines) {
    const size_t begin = at + 4, end = output.find('\r', begin);
    at = end;
    if (!contains(output.substr(begin, end - begin), "val loss")) CHECK(end - begin < 60);
  }
  CHECK(live_lines == 30);
}

TEST_CASE("train/train program: standard output that can't be written is a failure") {
  const Workplace work;
  const std::string command = str("'", program("train").string(), "' --version > /dev/full");
  CHECK(WEXITSTATUS(std::system((command + " 2> " + (work.folder / "err").string()).c_str())) == 1);
  CHECK(is_one_line(file_bytes(work.folder / "err")));
}

TEST_CASE("train/train program: closed standard streams leave no trace in the files of a run") {
  const Workplace work;
  const std::filesystem::path out = work.folder / "run";
  for (const char* closed : {"> /dev/null <&-", "<&- >&-", "<&- >&- 2>&-", ">&- 2>&-"}) {
    CAPTURE(closed);
    std::filesystem::remove_all(out);
    std::string command = program("train").string();
    for (const std::string& word : work.arguments("run")) command += " '" + word + "'";
    CHECK(std::system((command + " --steps 3 " + closed).c_str()) == 0);
    CHECK(file_bytes(out / "lock").empty());
    CHECK(MetricsFile::read(out / "metrics.csv").size() == 3);
    CHECK(nlohmann::json::accept(file_bytes(out / "run.json")));
    CHECK(newest_checkpoint(out).has_value());
  }
}

TEST_CASE("train/train program: interrupts save a whole step from which the run goes on") {
  const Workplace work;
  const std::vector<std::string> steps = {"--steps=600", "--eval-every=150", "--dropout=0.1",
                                          "--log-every=1"};
  CHECK(run("train", work.arguments("whole") + steps).code == 0);

  // By the terminal, by the system, by a connection that drops, and by a key that is pressed twice.
  const std::filesystem::path out = work.folder / "run";
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, -SIGINT}) {
    CAPTURE(signal);
    std::vector<std::string> arguments = work.arguments("run") + steps;
    if (signal != SIGINT) arguments = {"--resume", "--out", out.string()};
    Process process("train", arguments);
    REQUIRE(process.prints("eta"));
    process.send(std::abs(signal));
    if (signal < 0) process.send(std::abs(signal));
    CHECK(process.wait() == 128 + std::abs(signal));
    CHECK(process.err().empty());
    CHECK(contains(process.out(), "interrupted: step "));
    const auto newest = newest_checkpoint(out);
    REQUIRE(newest.has_value());
    CHECK(load_checkpoint(*newest).step == MetricsFile::read(out / "metrics.csv").back().step);
  }
  const Outcome rest = run("train", {"--resume", "--out", out.string()});
  CHECK(rest.code == 0);
  CHECK(contains(rest.out, "resumed   after step"));
  CHECK(losses_of(out) == losses_of(work.folder / "whole"));
  CHECK(parameters_of(out / "step-00000600") == parameters_of(work.folder / "whole/step-00000600"));
}

TEST_CASE("train/train program: signals that it was started to ignore do not end it") {
  const Workplace work;
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    CAPTURE(signal);
    std::filesystem::remove_all(work.folder / "run");
    Process process("train", work.arguments("run") + std::vector<std::string>{"--steps=100", "--log-every=1"},
                    0, signal);
    REQUIRE(process.prints("eta"));
    process.send(signal);
    CHECK(process.wait() == 0);
    CHECK(MetricsFile::read(work.folder / "run/metrics.csv").size() == 100);
  }
}

TEST_CASE(
    "train/train program: an interrupt ends an evaluation and its row is completed by the resumed run") {
  const Workplace work;
  write_bytes(work.text, words_text(150000));
  const std::vector<std::string> steps = {"--steps=3", "--eval-every=1", "--log-every=1"};
  const std::filesystem::path out = work.folder / "run";
  {
    // A step takes a few milliseconds, the evaluation behind it more than a hundred.
    Process process("train", work.arguments("run") + steps);
    REQUIRE(process.prints("step    1/3"));
    ::usleep(40000);
    process.send(SIGTERM);
    CHECK(process.wait() == 128 + SIGTERM);
    CHECK(std::filesystem::exists(out / "step-00000002"));
    CHECK(MetricsFile::read(out / "metrics.csv").back().step == 2);
    CHECK_FALSE(MetricsFile::read(out / "metrics.csv").back().val_loss.has_value());
  }
  CHECK(run("train", {"--resume", "--out", out.string()}).code == 0);
  CHECK(run("train", work.arguments("whole") + steps).code == 0);
  CHECK(losses_of(out) == losses_of(work.folder / "whole"));
}

/// Types what a line of output says behind "go on with "; true when steps were trained by it.
bool advice_works(const std::string& output, const std::filesystem::path& run_folder) {
  const size_t begin = output.find("go on with ");
  REQUIRE(begin != output.npos);
  const std::string words = output.substr(begin + 11, output.find('\n', begin) - begin - 11);
  const size_t before = MetricsFile::read(run_folder / "metrics.csv").size();
  const std::string command = words + " > /dev/null";
  CAPTURE(command);
  CHECK(std::system(command.c_str()) == 0);
  return MetricsFile::read(run_folder / "metrics.csv").size() > before;
}

TEST_CASE("train/train program: advice that is printed works when it is typed") {
  const Workplace work;
  const char* name = "it's a run";
  const std::filesystem::path out = work.folder / name;
  {
    Process process("train", work.arguments(name) + std::vector<std::string>{"--steps=300", "--log-every=1"});
    REQUIRE(process.prints("eta"));
    process.send(SIGINT);
    process.wait();
    CHECK(advice_works(process.out(), out));
  }
  const Outcome nothing = run("train", {"--resume", "--out", out.string()});
  CHECK(contains(nothing.out, "nothing is left to train: step 300 of 300"));
  CHECK(advice_works(nothing.out, out));
  CHECK(MetricsFile::read(out / "metrics.csv").size() == 600);
}

TEST_CASE("train/train program: each resumption with minutes trains for so many more") {
  const Workplace work;
  const std::filesystem::path out = work.folder / "run";
  CHECK(run("train", work.arguments("run") + std::vector<std::string>{"--minutes=0.002"}).code == 0);
  for (int again = 0; again < 2; ++again) {
    const size_t before = MetricsFile::read(out / "metrics.csv").size();
    CHECK(run("train", {"--resume", "--out", out.string(), "--minutes=0.002"}).code == 0);
    CHECK(MetricsFile::read(out / "metrics.csv").size() > before);
  }
  const int64_t steps = MetricsFile::read(out / "metrics.csv").back().step + 50;
  CHECK(run("train", {"--resume", "--out", out.string(), str("--steps=", steps)}).code == 0);
  CHECK(MetricsFile::read(out / "metrics.csv").back().step == steps);
}

TEST_CASE("train/train program: two processes do not train in one folder") {
  const Workplace work;
  Process first("train",
                work.arguments("run") +
                    std::vector<std::string>{"--steps=9999", "--checkpoint-every=1", "--log-every=1"});
  REQUIRE(first.prints("step    2/"));
  const Outcome second = run("train", {"--resume", "--out", (work.folder / "run").string(), "--threads=1"});
  CAPTURE(second.err);
  CHECK(second.code == 2);
  CHECK(is_one_line(second.err));
  CHECK(contains(second.err, "is in use by another process"));
  first.send(SIGTERM);
  CHECK(first.wait() == 128 + SIGTERM);
}

TEST_CASE("train/train program: a run that was killed before its first checkpoint can start over") {
  const Workplace work;
  const std::vector<std::string> steps = {"--steps=9999", "--log-every=1"};
  Process process("train", work.arguments("run") + steps);
  REQUIRE(process.prints("step    2/"));
  process.send(SIGKILL);
  process.wait();
  CHECK(run("train", work.arguments("run") + std::vector<std::string>{"--steps=2"}).code == 0);
  CHECK(MetricsFile::read(work.folder / "run" / "metrics.csv").size() == 2);
}

TEST_CASE("train/train program: killed again and again it still ends with the same parameters") {
  const Workplace work;
  const std::vector<std::string> steps = {"--steps=300", "--checkpoint-every=10", "--dropout=0.1"};
  CHECK(run("train", work.arguments("whole") + steps).code == 0);

  const std::filesystem::path out = work.folder / "run";
  Generator chance(5);
  int kills = 0;
  for (bool started = false; kills < 8;) {
    Process process("train", started ? std::vector<std::string>{"--resume", "--out", out.string()}
                                     : work.arguments("run") + steps);
    ::usleep(static_cast<useconds_t>(1000 * (60 + 200 * chance.uniform())));
    process.send(SIGKILL);
    ++kills;
    process.wait();
    started = newest_checkpoint(out).has_value();
    if (!started) std::filesystem::remove_all(out);
  }
  const Outcome rest = newest_checkpoint(out) ? run("train", {"--resume", "--out", out.string()})
                                              : run("train", work.arguments("run") + steps);
  CAPTURE(rest.err);
  CHECK(rest.code == 0);
  CHECK(losses_of(out) == losses_of(work.folder / "whole"));
  CHECK(parameters_of(out / "step-00000300") == parameters_of(work.folder / "whole/step-00000300"));
}

TEST_CASE("train/train program: a full disk is reported with the reason and spares the last checkpoint") {
  const Workplace work;
  const std::filesystem::path out = work.folder / "run";
  CHECK(run("train", work.arguments("run") + std::vector<std::string>{"--steps=10"}).code == 0);
  Process full("train", {"--resume", "--out", out.string(), "--steps=20"}, 8000);
  CHECK(full.wait() == 1);
  CHECK(is_one_line(full.err()));
  CHECK(contains(full.err(), "File too large"));
  CHECK(newest_checkpoint(out) == out / "step-00000010");
  CHECK(run("train", {"--resume", "--out", out.string(), "--steps=20"}).code == 0);
}

TEST_CASE("train/train program: the quickstart's configuration trains and shows its results") {
  const Workplace work;
  const std::filesystem::path conf = std::filesystem::path(MIXGRAD_SOURCE_DIR) / "train/quickstart.conf";
  const Outcome outcome =
      run("train", {"--config", conf.string(), "--data", work.text.string(), "--out",
                    (work.folder / "run").string(), "--minutes=0", "--steps=2", "--threads=1"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  for (const char* part : {"---- sample after step 2", "nats per token", "bits per byte", "step-00000002",
                           "metrics.csv", "loss.png", "responsibilities.png"}) {
    CAPTURE(part);
    CHECK(contains(outcome.out, part));
  }
}

}  // namespace
}  // namespace mixgrad
