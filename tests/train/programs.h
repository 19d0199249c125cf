// What the tests of `train` and `generate` share: small texts and options, quiet runs, and child processes.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <sstream>
#include <vector>

#include "tensor/random.h"
#include "tests/train/scratch_files.h"
#include "train/options.h"
#include "train/trainer.h"

namespace mixgrad {

/// Words of six letters out of a few, drawn at random: what comes next follows from the last letters
/// together, not from the last one alone.
inline std::string words_text(int64_t words, uint64_t seed = 1) {
  const char* lexicon[] = {"abcabd", "bacdda", "cbadcc", "dacbab", "acddbc", "bdbacd", "cacbdb", "dbcaac"};
  Generator generator(seed, Stream::data);
  std::string text;
  for (int64_t i = 0; i < words; ++i) {
    text += lexicon[static_cast<int>(generator.uniform() * 8)];
    text += i % 10 == 9 ? '\n' : ' ';
  }
  return text;
}

/// Options of a run that takes a fraction of a second: one small layer, one thread.
inline TrainOptions small_options(const std::filesystem::path& data, const std::filesystem::path& out) {
  TrainOptions options;
  options.data = data;
  options.out = out;
  options.model.layers = 1;
  options.model.heads = 2;
  options.model.width = 16;
  options.model.context = 16;
  options.model.pattern = "gma(components=5,routing=3)";
  options.batch = 2;
  options.steps = 20;
  options.warmup = 5;
  options.eval_every = 1000;
  options.eval_batches = 4;
  options.checkpoint_every = 1000;
  options.threads = 1;
  return options;
}

/// The same as arguments of the program.
inline std::vector<std::string> small_arguments(const std::filesystem::path& data,
                                                const std::filesystem::path& out) {
  return {"--data",     data.string(),  "--out",
          out.string(), "--layers=1",   "--heads=2",
          "--width=16", "--context=16", "--mixer=gma(components=5,routing=3)",
          "--batch=2",  "--warmup=5",   "--threads=1"};
}

inline std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// While it lives, what the program prints on standard output is kept, not shown.
class CapturedOutput {
 public:
  CapturedOutput() : old_(std::cout.rdbuf(text_.rdbuf())) {}
  ~CapturedOutput() { std::cout.rdbuf(old_); }
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;

  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* old_;
};

/// Trains to the end; what it printed.
inline std::string train_quietly(const TrainOptions& options) {
  const CapturedOutput output;
  REQUIRE(Trainer(options).run() == 0);
  return output.text();
}

inline std::filesystem::path program(const std::string& name) {
  return std::filesystem::path(MIXGRAD_BINARY_DIR) / "bin" / name;
}

/// A program of ours as a child process, its output in files. Killed at the end of the scope if it still
/// runs.
class Process {
 public:
  /// file_limit > 0: no file of the child can grow beyond so many bytes. ignored: a signal that the child is
  /// started to ignore.
  Process(const std::string& name, const std::vector<std::string>& arguments, rlim_t file_limit = 0,
          int ignored = 0) {
    std::vector<std::string> words = std::vector<std::string>{program(name).string()} + arguments;
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string out = (logs_ / "out").string(), err = (logs_ / "err").string();
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ > 0) return;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP})
      ::signal(signal, signal == ignored ? SIG_IGN : SIG_DFL);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    if (file_limit > 0) {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{file_limit, file_limit};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~Process() {
    if (pid_ > 0) {
      send(SIGKILL);
      wait();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const { ::kill(pid_, signal); }
  /// The exit code; minus the signal that ended it.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string out() const { return file_bytes(logs_ / "out"); }
  std::string err() const { return file_bytes(logs_ / "err"); }
  /// Waits until it has printed the text; false when it ends before.
  bool prints(std::string_view text) const {
    while (!contains(out(), text)) {
      siginfo_t ended{};
      ::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT);
      if (ended.si_pid != 0) return contains(out(), text);
      ::usleep(2000);
    }
    return true;
  }

 private:
  ScratchFolder logs_;
  pid_t pid_ = 0;
};

/// How a program ended.
struct Outcome {
  int code;
  std::string out, err;
};

inline Outcome run(const std::string& name, const std::vector<std::string>& arguments) {
  Process process(name, arguments);
  const int code = process.wait();
  return {code, process.out(), process.err()};
}

/// Exactly one line, with its end.
inline bool is_one_line(const std::string& text) {
  return text.size() > 1 && text.find('\n') == text.size() - 1;
}

}  // namespace mixgrad
