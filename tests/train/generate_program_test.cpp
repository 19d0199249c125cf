// The program `generate` as its user meets it: prompts, sampling, and models that can't be loaded.
#include <doctest/doctest.h>

#include <cstring>

#include "tests/train/programs.h"
#include "train/checkpoint.h"
#include "train/tokenizer.h"

namespace mixgrad {
namespace {

/// A folder with a small model trained on characters, some of several bytes.
struct TrainedModel {
  explicit TrainedModel(const char* tokenizer = "char", const char* pattern = "gma(components=5,routing=3)") {
    write_bytes(text, repeated("caf\u00e9 na\u00efve \u65e5\u672c\n", 60));
    TrainOptions options = small_options(text, run_folder);
    options.tokenizer = tokenizer;
    options.model.pattern = pattern;
    train_quietly(options);
  }

  static std::string repeated(const std::string& line, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += line;
    return all;
  }

  Outcome generate(const std::vector<std::string>& more) const {
    return run("generate", std::vector<std::string>{"--model", run_folder.string(), "--threads=1"} + more);
  }

  ScratchFolder folder;
  const std::filesystem::path text = folder / "text.txt";
  const std::filesystem::path run_folder = folder / "run";
};

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

void check_refused(const Outcome& outcome, int code, std::string_view part) {
  CAPTURE(outcome.err);
  CHECK(outcome.code == code);
  CHECK(is_one_line(outcome.err));
  CHECK(contains(outcome.err, part));
  CHECK(outcome.out.empty());
}

TEST_CASE("train/generate program: a prompt is continued by so many tokens and the seed decides how") {
  const TrainedModel model;
  const Outcome first = model.generate({"--prompt", "na\u00ef", "--tokens=30", "--seed=7"});
  CHECK(first.code == 0);
  CHECK(first.out.starts_with("na\u00ef"));
  CHECK(characters(first.out) == 3 + 30 + 1);  // and the line end
  CHECK(model.generate({"--prompt", "na\u00ef", "--tokens=30", "--seed=7"}).out == first.out);
  CHECK(model.generate({"--prompt", "na\u00ef", "--tokens=30", "--seed=8"}).out != first.out);
  CHECK(model.generate({"--prompt", "caf", "--tokens=0"}).out == "caf\n");
}

TEST_CASE("train/generate program: prompts of every length for both mixers") {
  for (const char* pattern : {"gma(components=5,routing=3)", "sdpa"}) {
    const TrainedModel model("char", pattern);
    // Without a prompt; as long as the context of 16, one less, one more, ten times; then three contexts
    // more.
    CHECK(characters(model.generate({"--tokens=9"}).out) == 10);
    for (const int64_t length : {15, 16, 17, 160}) {
      CAPTURE(length);
      const Outcome outcome = model.generate({"--prompt", std::string(length, 'a'), "--tokens=48"});
      CHECK(outcome.code == 0);
      CHECK(characters(outcome.out) == length + 48 + 1);
    }
  }
}

TEST_CASE("train/generate program: a character that the model does not know is named with its place") {
  const TrainedModel model;
  check_refused(model.generate({"--prompt", "caf\u00e9 Z"}), 2, "Z");
  check_refused(model.generate({"--prompt", "caf\u00e9 \u20ac"}), 2, "\u20ac");
}

TEST_CASE("train/generate program: the default prompt suits a text without line ends") {
  const ScratchFolder folder;
  write_bytes(folder / "text", TrainedModel::repeated("xyz", 200));
  TrainOptions options = small_options(folder / "text", folder / "run");
  options.tokenizer = "char";
  options.steps = 2;
  train_quietly(options);
  const Outcome outcome =
      run("generate", {"--model", (folder / "run").string(), "--threads=1", "--tokens=5"});
  CHECK(outcome.code == 0);
  CHECK(outcome.out.size() == 6);
}

TEST_CASE("train/generate program: what the model has learned is enough") {
  const TrainedModel model;
  const std::string text = model.generate({"--tokens=9"}).out;
  const std::filesystem::path checkpoint = model.run_folder / "step-00000020";
  std::filesystem::remove(checkpoint / "optimizer.safetensors");
  CHECK(model.generate({"--tokens=9"}).out == text);
  const Outcome alone = run("generate", {"--model", checkpoint.string(), "--threads=1", "--tokens=9"});
  CHECK(alone.out == text);
  CHECK(alone.err.empty());
  std::filesystem::remove(checkpoint / "model.safetensors");
  check_refused(model.generate({"--tokens=9"}), 1, "model.safetensors");
}

TEST_CASE("train/generate program: a prompt comes from a file or from standard input however long it is") {
  const TrainedModel model;
  const std::string prompt = TrainedModel::repeated("caf\u00e9\n", 30000);  // 180 KB
  const std::filesystem::path file = model.folder / "prompt.txt", out = model.folder / "out";
  write_bytes(file, prompt);
  const std::string word = model.generate({"--prompt", "caf\u00e9\n", "--tokens=0"}).out;
  CHECK(word == "caf\u00e9\n\n");
  const Outcome from_file = model.generate({"--prompt-file", file.string(), "--tokens=5"});
  CHECK(from_file.code == 0);
  CHECK(from_file.out.starts_with(prompt));
  CHECK(characters(from_file.out) == 5 * 30000 + 5 + 1);
  const std::string command =
      str("'", program("generate").string(), "' --threads 1 --prompt-file - --tokens 5 --model '",
          model.run_folder.string(), "' < '", file.string(), "' > '", out.string(), "' 2> /dev/null");
  CHECK(std::system(command.c_str()) == 0);
  CHECK(file_bytes(out) == from_file.out);
  check_refused(model.generate({"--prompt-file=/nowhere"}), 1, "'/nowhere' can't be read");
  check_refused(model.generate({"--prompt-file=-", "--prompt=a"}), 2, "one of them");
}

TEST_CASE("train/generate program: raw bytes are those of the tokens") {
  const TrainedModel model("byte");
  const std::string prompt = "caf\xc3";  // half a character, which nothing completes
  CHECK(model.generate({"--prompt", prompt, "--tokens=0"}).out == "caf\uFFFD\n");
  CHECK(model.generate({"--prompt", prompt, "--tokens=0", "--raw"}).out == prompt);
  CHECK(model.generate({"--tokens=40", "--raw", "--temperature=1000"}).out.size() == 40);
}

TEST_CASE("train/generate program: sampling options out of range are refused") {
  const TrainedModel model;
  check_refused(model.generate({"--temperature=-1"}), 2, "temperature -1; allowed");
  check_refused(model.generate({"--temperature=nan"}), 2, "temperature nan; allowed");
  check_refused(model.generate({"--temperature=x"}), 2, "--temperature: x; allowed: a number");
  check_refused(model.generate({"--top-k=-1"}), 2, "top_k -1; allowed");
  check_refused(model.generate({"--tokens=-1"}), 2, "tokens -1; allowed");
  check_refused(run("generate", {"--threads=-1"}), 2, "--threads: -1; allowed");
  check_refused(model.generate({"--device=cuda:99"}), 2, "'cuda:99' is not available: ");
  check_refused(model.generate({"--promt=a"}), 2, "did you mean '--prompt'?");
  check_refused(model.generate({"--temp=1"}), 2, "did you mean '--temperature'?");
  const Outcome not_text = model.generate({"--prompt=\xff"});
  check_refused(not_text, 2, "not valid UTF-8 at byte 0");
  CHECK_FALSE(contains(not_text.err, "--tokenizer"));  // which it doesn't have
}

TEST_CASE("train/generate program: at temperature 0 and with one candidate chance has no part") {
  const TrainedModel model;
  const std::string greedy = model.generate({"--temperature=0", "--seed=1"}).out;
  CHECK(model.generate({"--temperature=0", "--seed=2"}).out == greedy);
  CHECK(model.generate({"--top-k=1", "--seed=3"}).out == greedy);
  CHECK(model.generate({"--temperature=1e-9", "--seed=4"}).out == greedy);
  CHECK(model.generate({"--top-k=99999", "--seed=5"}).code == 0);
}

TEST_CASE("train/generate program: bytes of one character come out together and the rest is replaced") {
  const TrainedModel model("byte");
  for (int seed = 1; seed <= 3; ++seed) {
    const std::string output = model.generate({str("--seed=", seed), "--tokens=200"}).out;
    for (size_t at = 0; at < output.size();) {
      const Utf8Character next = decode_utf8(std::string_view(output).substr(at));
      REQUIRE(next.valid);
      at += next.length;
    }
    CHECK_FALSE(contains(output, "\033"));
  }
  // A prompt that ends inside a character: what is missing may still come.
  CHECK(model.generate({"--prompt", "caf\xc3", "--tokens=0"}).out == "caf\ufffd\n");
}

TEST_CASE("train/generate program: a checkpoint is found by its own folder or its run's") {
  const TrainedModel model;
  const std::filesystem::path step = model.run_folder / "step-00000020";
  const Outcome outcome = run("generate", {"--model", step.string(), "--tokens=20", "--threads=1"});
  CHECK(outcome.code == 0);
  CHECK(outcome.out == model.generate({"--tokens=20"}).out);
}

TEST_CASE("train/generate program: models that are missing or foreign or damaged are refused") {
  const TrainedModel model;
  const std::filesystem::path file = model.run_folder / "step-00000020/model.safetensors";
  const std::string good = file_bytes(file);
  const auto check_damaged = [&](const std::string& bytes, std::string_view part) {
    write_bytes(file, bytes);
    check_refused(model.generate({}), 1, part);
  };
  check_refused(run("generate", {"--model", (model.folder / "none").string()}), 1, "none");
  check_refused(run("generate", {"--model", model.text.string()}), 1, "text.txt");
  check_damaged(good.substr(0, good.size() / 2), "model.safetensors");
  check_damaged("", "model.safetensors");
  std::string flipped = good;
  flipped[flipped.size() / 2] ^= 1;
  check_damaged(flipped, "model.safetensors");

  // Another program's file in place of ours, and even a manifest that vouches for it.
  Checkpoint foreign = load_checkpoint((write_bytes(file, good), model.run_folder));
  foreign.model = {{"encoder.weight", Tensor::zeros({2, 3}, DType::float32)}};
  save_checkpoint(model.run_folder, foreign);
  check_refused(model.generate({}), 1, "don't fit the model: tokens.weight");
  foreign.state = nlohmann::json::object();
  save_checkpoint(model.run_folder, foreign);
  check_refused(model.generate({}), 1, "holds no language model");
}

}  // namespace
}  // namespace mixgrad
