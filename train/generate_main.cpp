// generate: continues a text with a trained model.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "models/generate.h"
#include "tensor/cpu_info.h"
#include "tensor/parallel.h"
#include "train/cli.h"
#include "train/saved_model.h"

namespace mixgrad {

namespace {

/// Prints bytes as they come. Unless they are wanted raw: a character of several bytes only when it is
/// complete, and what is none as U+FFFD.
class CharacterStream {
 public:
  explicit CharacterStream(bool raw) : raw_(raw) {}

  void put(const std::string& bytes) {
    if (raw_) {
      std::cout << bytes << std::flush;
      return;
    }
    pending_ += bytes;
    size_t complete = 0;
    while (complete < pending_.size()) {
      const Utf8Character next = decode_utf8(std::string_view(pending_).substr(complete));
      const bool may_continue = !next.valid && complete + next.length == pending_.size() && next.length < 4;
      if (may_continue) break;
      complete += next.length;
    }
    std::cout << printable(std::string_view(pending_).substr(0, complete)) << std::flush;
    pending_.erase(0, complete);
  }
  void end() {
    if (!raw_) std::cout << printable(pending_) << std::endl;
  }

 private:
  const bool raw_;
  std::string pending_;
};

/// The bytes of a file, or of standard input where it is called "-".
std::string read_prompt(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    check_usage(!std::filesystem::is_directory(path), "[generate] '", path, "' is a folder; allowed: a file");
    file.open(path, std::ios::binary);
    check(file.good(), "[generate] '", path, "' can't be read");
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string text{std::istreambuf_iterator<char>(in), {}};
  check(!in.bad(), "[generate] '", path, "' can't be read");
  return text;
}

int run(int argc, char** argv) {
  std::string model_path = "runs/latest", prompt, prompt_file, device = "auto";
  uint64_t seed = 1;
  int64_t threads = 0;
  bool raw = false;
  SamplingOptions sampling;
  CLI::App app("Continues a prompt with a model that `train` made.", "generate");
  app.option_defaults()->always_capture_default();
  app.add_option("--model", model_path, "A run's folder, or one of its checkpoints");
  app.add_option("--prompt", prompt, "Text to continue, printed first; without one, a new line begins");
  app.add_option("--prompt-file", prompt_file,
                 "File whose text is continued instead, byte by byte; -: standard input");
  app.add_flag("--raw", raw,
               "Write the bytes as they are: no line end behind them, no U+FFFD for what is no text");
  app.add_option("--tokens", sampling.tokens, "How many tokens to generate");
  app.add_option("--temperature", sampling.temperature, "0: always the most probable token");
  app.add_option("--top-k", sampling.top_k, "Draw from the k most probable tokens; 0: from all");
  app.add_option("--seed", seed, "The same seed draws the same text");
  app.add_option("--device", device, "cpu, cuda, cuda:N, or auto: a GPU if there is one");
  app.add_option("--threads", threads, "0: all that the machine has");
  add_version(app);
  if (!parse(app, argc, argv)) return 0;
  sampling.validate();
  check_usage(threads >= 0 && threads <= most_threads(), "[options] --threads: ", threads, "; allowed: 0 to ",
              most_threads());
  if (threads > 0) set_thread_count(static_cast<int>(threads));

  check_usage(prompt.empty() || prompt_file.empty(),
              "[options] --prompt and --prompt-file; allowed: one of them");
  if (!prompt_file.empty()) prompt = read_prompt(prompt_file);

  const SavedModel saved = load_model(model_path, parse_device(device));
  for (const std::string& line : saved.skipped) std::cerr << "note: passed over " << line << '\n';
  std::vector<int32_t> ids = saved.tokenizer.encode(prompt);
  if (ids.empty()) ids = {opening_token(saved.tokenizer)};
  if (static_cast<int64_t>(ids.size()) > saved.model->longest_read()) {
    std::cerr << "note: the model reads the last " << saved.model->longest_read() << " of the prompt's "
              << ids.size() << " tokens, its learned context\n";
  }
  Generator generator(seed, Stream::sampling);
  CharacterStream out(raw);
  out.put(prompt);
  generate(*saved.model, ids, sampling, generator, [&](int32_t token) {
    out.put(saved.tokenizer.decode({&token, 1}));
  });
  out.end();
  return 0;
}

}  // namespace

}  // namespace mixgrad

int main(int argc, char** argv) { return mixgrad::run_program(argc, argv, mixgrad::run); }
