// What the pages say is there: the links, the files and the commands. Their complete examples are tests of
// their own (extract_examples.cmake).
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "nn/mixer.h"
#include "tests/train/scratch_files.h"

namespace {

namespace fs = std::filesystem;

const fs::path root = MIXGRAD_SOURCE_DIR;
const fs::path programs = fs::path(MIXGRAD_BINARY_DIR) / "bin";
const fs::path examples = MIXGRAD_EXAMPLES_DIR;
const std::string program_prefix = "build/release/bin/";

/// A page's line. In a block of code, fence is what opened it: "```sh".
struct Line {
  std::string text;
  std::string fence;
};

std::vector<Line> lines_of(const fs::path& page) {
  std::vector<Line> lines;
  std::ifstream in(page);
  std::string fence;
  for (std::string text; std::getline(in, text);) {
    if (text.starts_with("```"))
      fence = fence.empty() ? text : "";
    else
      lines.push_back({text, fence});
  }
  return lines;
}

/// All pages of the repository.
std::vector<fs::path> pages() {
  std::vector<fs::path> found;
  for (const char* start : {"tensor", "autograd", "nn", "models", "train", "tests", "docs"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / start)) {
      if (entry.path().extension() == ".md") found.push_back(entry.path());
    }
  }
  if (fs::exists(root / "README.md")) found.push_back(root / "README.md");
  std::sort(found.begin(), found.end());
  return found;
}

/// The first group of every match of the pattern.
std::vector<std::string> matches(const std::string& text, const std::regex& pattern) {
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

/// The name by which a heading is linked to: "## Two words!" is #two-words.
std::string anchor(const std::string& heading) {
  std::string name;
  for (const char c : heading.substr(heading.find_first_not_of("# "))) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-')
      name += static_cast<char>(std::tolower(c));
    if (c == ' ') name += '-';
  }
  return name;
}

bool has_anchor(const fs::path& page, const std::string& name) {
  const std::vector<Line> lines = lines_of(page);
  return std::any_of(lines.begin(), lines.end(), [&](const Line& line) {
    return line.fence.empty() && line.text.starts_with("#") && anchor(line.text) == name;
  });
}

/// What is wrong with a link on a page; nothing if it leads somewhere or out of the repository.
std::string link_fault(const fs::path& page, const std::string& link) {
  if (link.find("://") != std::string::npos || link.starts_with("mailto:")) return "";
  const size_t hash = link.find('#');
  const std::string path = link.substr(0, hash);
  const fs::path target = path.empty() ? page : page.parent_path() / path;
  if (!fs::exists(target)) return "no such file";
  if (hash == std::string::npos || target.extension() != ".md") return "";
  return has_anchor(target, link.substr(hash + 1)) ? "" : "no such heading";
}

/// Whether a word in backticks claims to be a file or folder of this repository.
bool claims_to_be_a_path(const std::string& word) {
  static const std::regex characters("[\\w./-]+");
  static const std::regex source_name("[\\w./-]*\\w\\.(h|cpp|def|md|cmake)");
  static const std::regex source_folder("(tensor|autograd|nn|models|train|tests|docs|\\.ci)/.*");
  return std::regex_match(word, characters) &&
         (std::regex_match(word, source_name) || std::regex_match(word, source_folder));
}

/// Whether there is such a file here, in an example of the pages, or, for a bare name, anywhere.
bool is_there(const std::string& word) {
  if (fs::exists(root / word) || fs::exists(examples / word)) return true;
  if (word.find('/') != std::string::npos) return false;
  for (const char* start : {"tensor", "autograd", "nn", "models", "train", "tests", "docs"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / start)) {
      if (entry.path().filename() == word) return true;
    }
  }
  return false;
}

/// A command line's words, as the shell would split it: quotes are taken away, a comment is left out.
std::vector<std::string> words_of(const std::string& command) {
  std::vector<std::string> words;
  std::string word;
  char quote = 0;
  bool open = false;
  for (const char c : command) {
    if (quote == 0 && !open && c == '#') break;
    if (quote == 0 && c == ' ') {
      if (open) words.push_back(word);
      word.clear();
      open = false;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
      open = true;
    } else if (c == quote) {
      quote = 0;
    } else {
      word += c;
      open = true;
    }
  }
  if (open) words.push_back(word);
  return words;
}

/// The commands in a page's ```sh blocks, each as its words; a line that ends with \ goes on in the next.
std::vector<std::vector<std::string>> commands_of(const fs::path& page) {
  std::vector<std::vector<std::string>> commands;
  std::string command;
  for (const Line& line : lines_of(page)) {
    if (line.fence != "```sh") continue;
    command += line.text;
    if (command.ends_with("\\")) {
      command.back() = ' ';
      continue;
    }
    if (auto words = words_of(command); !words.empty()) commands.push_back(words);
    command.clear();
  }
  return commands;
}

/// The pages that people type commands from.
std::vector<fs::path> pages_with_commands() {
  std::vector<fs::path> found;
  for (const fs::path& page : pages()) {
    if (page.parent_path() == root || page.parent_path() == root / "docs") found.push_back(page);
  }
  return found;
}

struct Run {
  int exit_code;
  std::string output;  // of both streams
};

Run run(const fs::path& folder, const std::vector<std::string>& words) {
  std::string command = "cd '" + folder.string() + "' &&";
  for (const std::string& word : words) {
    REQUIRE(word.find('\'') == std::string::npos);
    command += " '" + word + "'";
  }
  FILE* pipe = ::popen((command + " 2>&1 </dev/null").c_str(), "r");
  REQUIRE(pipe != nullptr);
  Run result;
  char piece[4096];
  for (size_t bytes; (bytes = std::fread(piece, 1, sizeof piece, pipe)) > 0;)
    result.output.append(piece, bytes);
  result.exit_code = WEXITSTATUS(::pclose(pipe));
  return result;
}

/// The long options that a program's --help names.
const std::set<std::string>& options_of(const std::string& program) {
  static std::map<std::string, std::set<std::string>> known;
  if (!known.contains(program)) {
    const Run help = run(root, {(programs / program).string(), "--help"});
    REQUIRE(help.exit_code == 0);
    const auto names = matches(help.output, std::regex("(--[a-z][a-z0-9-]*)"));
    known[program] = {names.begin(), names.end()};
  }
  return known[program];
}

/// What is wrong with a command; nothing if it could be typed.
std::string command_fault(const std::vector<std::string>& words) {
  static const std::set<std::string> foreign = {"cd", "cmake", "ctest", "git"};
  const std::string& first = words[0];
  if (foreign.contains(first)) return "";
  if (!first.starts_with(program_prefix)) {
    const auto executable = fs::perms::owner_exec;
    const bool script = fs::is_regular_file(root / first) &&
                        (fs::status(root / first).permissions() & executable) == executable;
    return script ? "" : "neither a program of the project nor a script of the repository";
  }
  const std::string program = first.substr(program_prefix.size());
  if (!fs::exists(programs / program)) return "no such program";
  for (const std::string& word : words) {
    const std::string option = word.substr(0, word.find('='));
    if (option.starts_with("--") && !options_of(program).contains(option)) return "no option " + option;
  }
  return "";
}

/// The value that a command gives an option, or the default.
std::string option_value(const std::vector<std::string>& words, const std::string& option,
                         const std::string& otherwise) {
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] == option && i + 1 < words.size()) return words[i + 1];
    if (words[i].starts_with(option + "=")) return words[i].substr(option.size() + 1);
  }
  return otherwise;
}

/// Gives an option another value, or takes it in.
void set_option(std::vector<std::string>& words, const std::string& option, const std::string& value) {
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] == option && i + 1 < words.size()) {
      words[i + 1] = value;
      return;
    }
    if (words[i].starts_with(option + "=")) {
      words[i] = option + "=" + value;
      return;
    }
  }
  words.push_back(option);
  words.push_back(value);
}

void set_options(std::vector<std::string>& words, const std::map<std::string, std::string>& values) {
  for (const auto& [option, value] : values) set_option(words, option, value);
}

/// The command with its program in place and so little to do that it takes a second at most; what it says
/// beyond sizes stays.
std::vector<std::string> made_small(std::vector<std::string> words) {
  const std::string program = words[0].substr(program_prefix.size());
  words[0] = (programs / program).string();
  if (program == "train") {
    set_option(words, "--data", (root / "tests/docs_test.cpp").string());
    set_options(words, {{"--steps", "2"},
                        {"--minutes", "0"},
                        {"--batch", "2"},
                        {"--context", "8"},
                        {"--width", "32"},
                        {"--threads", "1"},
                        {"--eval-batches", "1"}});
    if (!option_value(words, "--ttt-tokens", "").empty()) set_option(words, "--ttt-tokens", "4");
  }
  if (program == "bench") {
    const std::map<std::string, std::map<std::string, std::string>> sizes = {
        {"step", {{"--layers", "1"}, {"--width", "24"}, {"--context", "8"}, {"--batch", "2"}}},
        {"mixers", {{"--lengths", "8,16"}, {"--head-size", "4"}, {"--one-by-one", "0"}}},
        {"decode", {{"--lengths", "8,16"}, {"--layers", "1"}, {"--width", "24"}}},
        {"kernels", {{"--batch", "1"}, {"--context", "8"}}},
        {"gemm", {{"--shape", "8,8,8"}}},
        {"peaks", {}},
    };
    set_options(words, sizes.at(words.at(1)));
    set_option(words, "--seconds", "0");
    set_option(words, "--attempts", "1");
    if (!option_value(words, "--against", "").empty()) {  // PyTorch need not be here
      set_option(words, "--rounds", "1");
      set_option(words, "--against",
                 "printf \"figure,ms\\nstep,1\\ncore gma T=16,1\\nmodel gma after 16 tokens,1\\n\"");
    }
  }
  if (program == "recall") {
    set_options(words, {{"--steps", "2"},
                        {"--seeds", "1"},
                        {"--pairs", "2"},
                        {"--batch", "2"},
                        {"--test-rows", "2"},
                        {"--width", "16"},
                        {"--threads", "1"}});
  }
  if (program == "generate") set_option(words, "--tokens", "4");
  if (program == "gradcheck" && option_value(words, "--golden", "").empty()) {
    if (option_value(words, "--filter", "").empty()) set_option(words, "--filter", "elementwise/scale");
  } else if (program == "gradcheck") {  // of all vectors, those of one op that is covered
    set_option(words, "--golden", (root / "tests/golden/linear").string());
  }
  return words;
}

}  // namespace

TEST_CASE("docs/pages: every link leads somewhere") {
  int links = 0;
  for (const fs::path& page : pages()) {
    for (const Line& line : lines_of(page)) {
      if (!line.fence.empty()) continue;
      for (const std::string& link : matches(line.text, std::regex("\\]\\(([^) ]+)\\)"))) {
        ++links;
        const std::string fault = link_fault(page, link);
        CHECK_MESSAGE(fault.empty(), page.string(), ": ", link, ": ", fault);
      }
    }
  }
  CHECK(links > 20);
  CHECK(link_fault(root / "docs/autograd.md", "no_such_page.md") == "no such file");
  CHECK(link_fault(root / "docs/autograd.md", "autograd.md#no-such-heading") == "no such heading");
  CHECK(link_fault(root / "docs/architecture.md", "autograd.md#the-contract-of-an-op") == "");
}

TEST_CASE("docs/pages: every file that is named is there") {
  int paths = 0;
  for (const fs::path& page : pages()) {
    for (const Line& line : lines_of(page)) {
      if (!line.fence.empty()) continue;
      for (const std::string& word : matches(line.text, std::regex("`([^`]+)`"))) {
        if (!claims_to_be_a_path(word)) continue;
        ++paths;
        CHECK_MESSAGE(is_there(word), page.string(), ": ", word, " is not there");
      }
    }
  }
  CHECK(paths > 3);
  CHECK(claims_to_be_a_path("tensor/no_such_folder"));
  CHECK(claims_to_be_a_path("no_such_file.h"));
  CHECK_FALSE(claims_to_be_a_path("metrics.csv"));
  CHECK_FALSE(is_there("tensor/no_such_folder"));
  CHECK_FALSE(is_there("no_such_file.h"));
}

TEST_CASE("docs/pages: a mixer's page lists its options with their defaults") {
  for (const mixgrad::MixerKind& kind : mixgrad::mixer_kinds()) {
    const fs::path page = root / "nn/mixers" / kind.name / (kind.name + ".md");
    const std::string text = mixgrad::file_bytes(page);
    for (const mixgrad::MixerOption& option : kind.options) {
      const std::string row = mixgrad::str("\n| `", option.name, "` | ", option.default_value, " | ");
      CHECK_MESSAGE(mixgrad::contains(text, row), page.string(), " has no row:", row);
    }
  }
}

TEST_CASE("docs/pages: every command can be typed") {
  int commands = 0;
  for (const fs::path& page : pages_with_commands()) {
    for (const std::vector<std::string>& words : commands_of(page)) {
      ++commands;
      const std::string fault = command_fault(words);
      CHECK_MESSAGE(fault.empty(), page.string(), ": ", words[0], " ...: ", fault);
    }
  }
  CHECK(commands > 3);
  CHECK(command_fault({program_prefix + "train", "--no-such-option", "1"}) == "no option --no-such-option");
  CHECK(command_fault({program_prefix + "no_such_program"}) == "no such program");
  CHECK_FALSE(command_fault({"no_such_script"}).empty());
  CHECK(words_of("a --b 'c d' \"e\" # f") == std::vector<std::string>{"a", "--b", "c d", "e"});
}

namespace {

const fs::path results = root / "docs/results.md";  // has as many commands as all others together

void run_commands(const std::vector<fs::path>& pages) {
  const mixgrad::ScratchFolder folder;  // of all pages, so that one can go on with the run of another
  std::set<std::vector<std::string>> done;
  for (const fs::path& page : pages) {
    for (const std::vector<std::string>& words : commands_of(page)) {
      if (!words[0].starts_with(program_prefix) || !command_fault(words).empty()) continue;
      const std::string program = words[0].substr(program_prefix.size());
      const bool resumes = std::find(words.begin(), words.end(), "--resume") != words.end();
      const std::string needed = program == "generate" ? option_value(words, "--model", "runs/latest")
                                 : resumes             ? option_value(words, "--out", "runs/latest")
                                                       : "";
      if (!needed.empty() && !fs::exists(folder / needed)) {
        const Run made = run(folder.path(), made_small({program_prefix + "train", "--out", needed}));
        REQUIRE_MESSAGE(made.exit_code == 0, made.output);
      }
      if (program == "train" && !resumes)
        fs::remove_all(folder / option_value(words, "--out", "runs/latest"));
      const std::vector<std::string> small = made_small(words);
      if (!done.insert(small).second) continue;
      const Run result = run(folder.path(), small);
      CHECK_MESSAGE(result.exit_code == 0, page.string(), ": ", words[0], " ...: ", result.output);
    }
  }
}

}  // namespace

TEST_CASE("docs/pages: every command of the results runs") { run_commands({results}); }

TEST_CASE("docs/pages: every command of the other pages runs") {
  std::vector<fs::path> others = pages_with_commands();
  CHECK(std::erase(others, results) == 1);
  run_commands(others);
}
