// metrics.csv: text of rows and back, appending, cutting back.
#include "train/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <limits>
#include <string>
#include <string_view>

#include "tensor/error.h"
#include "train/atomic_file.h"

namespace mixgrad {
namespace {

// Calls visit(column's name, member of row) for every column, in the order of the file: the one list of
// columns that reading and writing share.
template <class Row, class Visit>
void for_each_column(Row& row, Visit visit) {
  visit("step", row.step);
  visit("tokens", row.tokens);
  visit("train_loss", row.train_loss);
  visit("val_loss", row.val_loss);
  visit("val_bits_per_byte", row.val_bits_per_byte);
  visit("learning_rate", row.learning_rate);
  visit("grad_norm", row.grad_norm);
  visit("step_ms", row.step_ms);
  visit("tokens_per_s", row.tokens_per_s);
  visit("peak_memory_bytes", row.peak_memory_bytes);
}

const std::string& header() {
  static const std::string line = [] {
    std::vector<std::string> names;
    const MetricsRow row;
    for_each_column(row, [&](std::string_view name, const auto&) { names.emplace_back(name); });
    return join(names, ",") + "\n";
  }();
  return line;
}

// Shortest decimal form that reads back as the same number.
template <class Number>
std::string to_text(Number number) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, number);
  return {buffer, end};
}
template <class Number>
std::string to_text(const std::optional<Number>& number) {
  return number ? to_text(*number) : "";
}

std::string to_line(const MetricsRow& row) {
  std::vector<std::string> cells;
  for_each_column(row, [&](std::string_view, const auto& value) { cells.push_back(to_text(value)); });
  return join(cells, ",") + "\n";
}

// Reads all of cell as a number; false when it isn't one. An optional number may also be empty.
template <class Number>
bool parse(std::string_view cell, Number& number) {
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), number);
  return error == std::errc() && end == cell.data() + cell.size();
}
template <class Number>
bool parse(std::string_view cell, std::optional<Number>& number) {
  return cell.empty() || parse(cell, number.emplace());
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != text.npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

// where: the file and line, for messages.
MetricsRow to_row(std::string_view line, const std::string& where) {
  const std::vector<std::string_view> cells = split(line, ',');
  const auto columns = std::ranges::count(header(), ',') + 1;
  check(std::ssize(cells) == columns, "[metrics] ", where, " has ", cells.size(), " cells; ", columns,
        " are needed");
  MetricsRow row;
  size_t column = 0;
  for_each_column(row, [&](std::string_view name, auto& value) {
    const std::string_view cell = cells[column++];
    check(parse(cell, value), "[metrics] ", where, ": ", name, " is \"", cell, "\"; a number is needed");
  });
  return row;
}

std::string line_place(const std::filesystem::path& path, int64_t line) {
  return str(path.string(), ", line ", line);
}

std::string file_text(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  check(file.get() >= 0, "[metrics] can't read ", path.string(), ": ", errno_text(errno));
  std::string text;
  char block[1 << 16];
  ssize_t got;
  while ((got = ::read(file.get(), block, sizeof block)) > 0) text.append(block, got);
  check(got == 0, "[metrics] can't read ", path.string(), ": ", errno_text(errno));
  return text;
}

// The lines after the header. What follows the last line end was half-written and is left out, and so may be
// a header.
std::vector<std::string> row_lines(const std::filesystem::path& path) {
  const std::string text = file_text(path);
  const std::string& expected = header();
  if (text.size() < expected.size() && expected.starts_with(text)) return {};
  check(text.starts_with(expected), "[metrics] ", path.string(), " begins with another header: \"",
        text.substr(0, std::min(text.find('\n'), expected.size())), "\"; \"",
        expected.substr(0, expected.size() - 1), "\" is needed");
  const std::vector<std::string_view> lines = split(std::string_view(text).substr(expected.size()), '\n');
  return {lines.begin(), lines.end() - 1};
}

// Makes an existing file end with a whole row. Devices are left alone: they have no content to repair.
void drop_half_written_row(const std::filesystem::path& path) {
  if (std::filesystem::is_regular_file(path))
    MetricsFile::cut_back(path, std::numeric_limits<int64_t>::max());
}

int open_for_appending(const std::filesystem::path& path) {
  drop_half_written_row(path);
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

int64_t file_size_bytes(int descriptor) {
  struct stat status;
  return ::fstat(descriptor, &status) == 0 ? status.st_size : 0;
}

}  // namespace

MetricsFile::MetricsFile(std::filesystem::path path)
    : path_(std::move(path)), file_(open_for_appending(path_)) {
  check(file_.get() >= 0, "[metrics] can't open ", path_.string(), ": ", errno_text(errno));
  if (file_size_bytes(file_.get()) == 0) append_lines(header());
}

void MetricsFile::append(const MetricsRow& row) { append_lines(to_line(row)); }

void MetricsFile::append_lines(const std::string& text) {
  const int64_t size = file_size_bytes(file_.get());
  if (write_fully(file_.get(), text)) return;
  const int reason = errno;
  // A half-written row must not stay: the next one would be written as its end.
  const bool restored = ::ftruncate(file_.get(), size) == 0;
  throw Error(str("[metrics] can't write ", path_.string(), ": ", errno_text(reason),
                  restored ? "" : "; its last row may be half-written"));
}

std::vector<MetricsRow> MetricsFile::read(const std::filesystem::path& path) {
  std::vector<MetricsRow> rows;
  int64_t line_number = 1;  // the header
  for (const std::string& line : row_lines(path))
    rows.push_back(to_row(line, line_place(path, ++line_number)));
  return rows;
}

int64_t MetricsFile::cut_back(const std::filesystem::path& path, int64_t step) {
  if (!std::filesystem::exists(path)) return 0;
  std::string kept = header();
  int64_t line_number = 1, removed = 0;
  for (const std::string& line : row_lines(path)) {
    if (to_row(line, line_place(path, ++line_number)).step <= step)
      kept += line + "\n";
    else
      ++removed;
  }
  write_file_atomically(path, kept);
  return removed;
}

}  // namespace mixgrad
