#include "train/cli.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <charconv>
#include <iostream>
#include <new>
#include <set>
#include <sstream>

#include "tensor/cpu_info.h"
#include "tensor/error.h"

namespace mixgrad {

namespace {

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

/// "; did you mean '--warmup'?", or where to look.
std::string suggestion(const CLI::App& app, const std::string& name, const char* prefix) {
  const std::string likely = nearest(name, option_names(app));
  return likely.empty() ? "; see --help" : str("; did you mean '", prefix, likely, "'?");
}

std::string unknown_argument(const CLI::App& app, const std::string& given) {
  const size_t begin = given.find_first_not_of('-');
  if (begin == 0 || begin == given.npos)
    return str("[options] unexpected argument '", given, "'; see --help");
  const std::string name = given.substr(begin, given.find('=') - begin);
  return str("[options] unknown option '", given, "'", suggestion(app, name, "--"));
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

/// Reads key = value lines. CLI11's own readers pass over in silence what this one refuses: sections, keys
/// given twice, a second value; and they cut values at commas, spaces and any #.
class ConfigReader : public CLI::ConfigBase {
 public:
  explicit ConfigReader(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> items;
    std::set<const CLI::Option*> seen;
    std::string line;
    for (int64_t number = 1; std::getline(input, line); ++number) {
      if (number == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);  // some editors' byte order mark
      line = trimmed(line);
      if (line.empty() || line[0] == '#') continue;
      const std::string where = str("[config] line ", number, ": ");
      const size_t equals = line.find('=');
      check_usage(line[0] != '[', where, "section ", line, "; allowed: key = value lines without sections");
      check_usage(equals != line.npos, where, "'", line, "'; allowed: key = value");
      const std::string key = trimmed(line.substr(0, equals));
      const CLI::Option* option = app_.get_option_no_throw("--" + key);
      check_usage(option != nullptr, where, "unknown key '", key, "'", suggestion(app_, key, ""));
      check_usage(option->get_configurable(), where, "key '", key, "'; allowed: on the command line only");
      check_usage(seen.insert(option).second, where, "key '", key, "' is given a second time");
      CLI::ConfigItem item;
      item.name = key;
      item.inputs = {value(trimmed(line.substr(equals + 1)), where)};
      items.push_back(item);
    }
    return items;
  }

 private:
  /// Without quotes, if it has any, and without the comment behind it.
  static std::string value(const std::string& text, const std::string& where) {
    if (text.empty() || text[0] != '"') return trimmed(text.substr(0, text.find(" #")));
    const size_t end = text.find('"', 1);
    check_usage(end != text.npos, where, "the quote of ", text, " is not closed");
    const std::string rest = trimmed(text.substr(end + 1));
    check_usage(rest.empty() || rest[0] == '#', where, "'", rest, "' behind the value ",
                text.substr(0, end + 1));
    return text.substr(1, end - 1);
  }

  const CLI::App& app_;
};

template <class Number>
bool is_number(const std::string& text) {
  Number number;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

bool is_truth(const std::string& text) { return text == "true" || text == "false"; }

/// Makes an option refuse what is not of its type, in words that say what is allowed. (CLI11 alone says that
/// it could not convert, and takes -1 for a large unsigned number.)
void check_values(CLI::Option& option) {
  const auto allow = [&](bool (*valid)(const std::string&), const char* what) {
    option.check([valid, what](const std::string& text) {
      return valid(text) ? std::string() : str(text.empty() ? "nothing" : text, "; allowed: ", what);
    });
  };
  const std::string type = option.get_type_name();
  const bool is_flag = option.get_expected_min() == 0 && option.get_configurable();
  if (is_flag) allow(is_truth, "true or false");
  if (type == "INT") allow(is_number<int64_t>, "a whole number");
  if (type == "UINT") allow(is_number<uint64_t>, "a whole number, not negative");
  if (type == "FLOAT") allow(is_number<double>, "a number");
}

/// A file that is opened takes the lowest number that is free. If that were 1, because the caller has closed
/// standard output, what is printed would go into the file.
void open_standard_descriptors() {
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(standard, F_GETFD) < 0) ::open("/dev/null", O_RDWR);  // takes that number
  }
}

/// A message for a terminal: one line, with its beginning and end where a long input is quoted in it.
std::string one_line(std::string text) {
  constexpr size_t longest = 1000, kept = 400;
  if (text.size() > longest) text.replace(kept, text.size() - 2 * kept, " ... ");
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

/// Options with their descriptions beside them, no line longer than help_columns.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    constexpr size_t indent = 30;
    std::string name = "  " + make_option_name(option, is_positional) + make_option_opts(option);
    name +=
        name.size() + 2 > indent ? "\n" + std::string(indent, ' ') : std::string(indent - name.size(), ' ');
    return name + folded(make_option_desc(option), indent) + "\n";
  }
};

}  // namespace

std::string folded(const std::string& text, size_t indent) {
  std::string out;
  size_t column = indent;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool first = column == indent;
    if (!first && column + 1 + word.size() > help_columns) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

void format_help(CLI::App& app) { app.formatter(std::make_shared<HelpFormatter>()); }

bool parse(CLI::App& app, int argc, char** argv) {
  format_help(app);
  app.config_formatter(std::make_shared<ConfigReader>(app));
  app.allow_extras();  // they are refused here, in our words
  for (CLI::Option* option : app.get_options()) {
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // refused below, flags included
    check_values(*option);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    app.exit(done);
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(str("[options] ", one_line(error.what())));
  }
  const std::vector<std::string> extras = app.remaining();
  if (!extras.empty()) throw UsageError(unknown_argument(app, extras[0]));
  for (const CLI::Option* option : app.get_options()) {
    check_usage(option->count() <= 1, "[options] ", option->get_name(), " is given ", option->count(),
                " times; allowed: once");
  }
  return true;
}

std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream in(list);
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

std::vector<int64_t> parse_numbers(const std::string& option, const std::string& text, int64_t least,
                                   int64_t most) {
  std::vector<int64_t> numbers;
  for (const std::string& word : split_list(text)) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    check_usage(error == std::errc{} && end == word.data() + word.size() && number >= least && number <= most,
                "[options] ", option, ": '", word, "'; allowed: whole numbers from ", least, " to ", most,
                " with commas between them");
    numbers.push_back(number);
  }
  check_usage(!numbers.empty(), "[options] ", option, " is empty; allowed: whole numbers from ", least,
              " to ", most, " with commas between them");
  return numbers;
}

void add_version(CLI::App& app) {
  app.set_version_flag("--version",
                       str("mixgrad ", MIXGRAD_VERSION, "\ncompiler  ", __VERSION__, "\nBLAS      ",
                           blas_description(), "\nzlib      ", zlibVersion(), "\nCUDA      ",
                           MIXGRAD_CUDA_SUMMARY, "\nCPU       ", cpu_description()));
}

int run_program(int argc, char** argv, int (*body)(int argc, char** argv)) {
  open_standard_descriptors();
  try {
    const int code = body(argc, argv);
    check(bool(std::cout.flush()), "[output] standard output can't be written");
    return code;
  } catch (const UsageError& error) {
    std::cerr << one_line(error.what()) << std::endl;
    return 2;
  } catch (const std::bad_alloc&) {
    std::cerr << "[memory] out of memory" << std::endl;
  } catch (const std::exception& error) {
    std::cerr << one_line(error.what()) << std::endl;
  }
  return 1;
}

}  // namespace mixgrad
