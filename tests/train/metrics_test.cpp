// metrics.csv: what is written reads back exactly, and a killed, resumed or failing run leaves whole rows.
#include "train/metrics.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tensor/error.h"
#include "tests/train/scratch_files.h"

namespace mixgrad {
namespace {

const std::string kHeader =
    "step,tokens,train_loss,val_loss,val_bits_per_byte,learning_rate,grad_norm,step_ms,tokens_per_s,"
    "peak_memory_bytes\n";

MetricsRow train_row(int64_t step, double loss) {
  MetricsRow row;
  row.step = step;
  row.tokens = step * 1024;
  row.train_loss = loss;
  row.learning_rate = 1e-3;
  return row;
}

std::vector<int64_t> steps_of(const std::vector<MetricsRow>& rows) {
  std::vector<int64_t> steps;
  for (const MetricsRow& row : rows) steps.push_back(row.step);
  return steps;
}

void write_rows(const std::filesystem::path& path, const std::vector<int64_t>& steps) {
  MetricsFile file(path);
  for (const int64_t step : steps) file.append(train_row(step, 1.0 / static_cast<double>(step)));
}

}  // namespace

TEST_CASE("train/metrics: the file is plain text with empty cells where nothing was measured") {
  const ScratchFolder folder;
  const auto path = folder / "metrics.csv";
  {
    MetricsFile file(path);
    CHECK(file_bytes(path) == kHeader);
    file.append(train_row(10, 5.5));
    CHECK(file_bytes(path) ==
          kHeader + "10,10240,5.5,,,0.001,,,,\n");  // on the disk before the file is closed
    MetricsRow row;
    row.step = 20;
    row.val_loss = 0.1;
    row.peak_memory_bytes = int64_t{1} << 40;
    file.append(row);
  }
  CHECK(file_bytes(path) == kHeader + "10,10240,5.5,,,0.001,,,,\n20,0,,0.1,,,,,,1099511627776\n");
}

TEST_CASE("train/metrics: every number reads back as the same bits") {
  using Limits = std::numeric_limits<double>;
  const ScratchFolder folder;
  const auto path = folder / "metrics.csv";
  const std::vector<double> values = {0.1,
                                      1.0 / 3,
                                      2.345678329467773,
                                      -0.0,
                                      Limits::denorm_min(),
                                      Limits::min(),
                                      Limits::max(),
                                      1e23,
                                      5e-324,
                                      1e6,
                                      Limits::infinity(),
                                      -Limits::infinity()};
  {
    MetricsFile file(path);
    for (const double value : values)
      file.append(train_row(std::numeric_limits<int64_t>::max() / 1024, value));
    file.append(train_row(1, Limits::quiet_NaN()));
  }
  const std::vector<MetricsRow> rows = MetricsFile::read(path);
  REQUIRE(rows.size() == values.size() + 1);
  for (size_t i = 0; i < values.size(); ++i) {
    INFO("value ", values[i]);
    REQUIRE(rows[i].train_loss.has_value());
    CHECK(std::bit_cast<uint64_t>(*rows[i].train_loss) == std::bit_cast<uint64_t>(values[i]));
    CHECK(rows[i].step == std::numeric_limits<int64_t>::max() / 1024);
    CHECK_FALSE(rows[i].val_loss.has_value());
  }
  CHECK(std::isnan(*rows.back().train_loss));
}

TEST_CASE("train/metrics: opening again appends and writes no second header") {
  const ScratchFolder folder;
  const auto path = folder / "metrics.csv";
  write_rows(path, {1, 2});
  write_rows(path, {3});
  CHECK(steps_of(MetricsFile::read(path)) == std::vector<int64_t>{1, 2, 3});
  CHECK(file_bytes(path).rfind("step,") == 0);
}

TEST_CASE("train/metrics: a file cut at any byte still gives its whole rows and can be continued") {
  const ScratchFolder folder;
  const auto path = folder / "metrics.csv";
  write_rows(path, {1, 2, 3});
  const std::string whole = file_bytes(path);
  for (size_t length = 0; length <= whole.size(); ++length) {
    const std::string cut = whole.substr(0, length);
    write_bytes(path, cut);
    const auto line_ends = std::ranges::count(cut, '\n');
    const auto rows = std::max<int64_t>(line_ends - 1, 0);
    INFO("cut to ", length, " bytes");
    REQUIRE(std::ssize(MetricsFile::read(path)) == rows);
    write_rows(path, {9});
    const std::vector<MetricsRow> continued = MetricsFile::read(path);
    REQUIRE(std::ssize(continued) == rows + 1);
    REQUIRE(continued.back() == train_row(9, 1.0 / 9));
  }
}

TEST_CASE("train/metrics: cutting back keeps the rows up to the step of the checkpoint") {
  const ScratchFolder folder;
  const auto path = folder / "metrics.csv";
  write_rows(path, {10, 20, 30, 40});
  const std::string whole = file_bytes(path);
  CHECK(MetricsFile::cut_back(path, 1000) == 0);
  CHECK(file_bytes(path) == whole);
  write_bytes(path, whole + "50,5");  // killed while writing
  CHECK(MetricsFile::cut_back(path, 29) == 2);
  CHECK(file_bytes(path) == whole.substr(0, whole.find("30,")));
  CHECK(MetricsFile::cut_back(path, 0) == 2);
  CHECK(file_bytes(path) == kHeader);
  CHECK(folder.files() == 1);
  CHECK(MetricsFile::cut_back(folder / "missing.csv", 5) == 0);
  CHECK(folder.files() == 1);
}

TEST_CASE("train/metrics: a foreign file is refused and left as it is") {
  const ScratchFolder folder;
  const auto path = folder / "metrics.csv";
  for (const std::string text : {"step,loss\n1,2\n", "notes", "step,tokens\n", "\n"}) {
    write_bytes(path, text);
    const std::string message = error_of([&] { MetricsFile file(path); });
    CHECK(contains(message, path.string() + " begins with another header"));
    CHECK(error_of([&] { MetricsFile::cut_back(path, 1); }) == message);
    CHECK(error_of([&] { MetricsFile::read(path); }) == message);
    CHECK(file_bytes(path) == text);
  }
}

TEST_CASE("train/metrics: a malformed row is named by its line") {
  const ScratchFolder folder;
  const auto path = folder / "metrics.csv";
  const auto message = [&](const std::string& row) {
    write_bytes(path, kHeader + "1,2,,,,,,,,\n" + row + "\n");
    return error_of([&] { MetricsFile::read(path); });
  };
  CHECK(message("2,4,,,,,,,,") == "");
  CHECK(contains(message("2,4,,abc,,,,,,"), "metrics.csv, line 3: val_loss is \"abc\""));
  CHECK(contains(message("2,4,1.5x,,,,,,,"), "line 3: train_loss is \"1.5x\""));
  CHECK(contains(message(",4,,,,,,,,"), "line 3: step is \"\""));
  CHECK(contains(message("2,4,,,,,,,,1.5"), "line 3: peak_memory_bytes is \"1.5\""));
  CHECK(contains(message("99999999999999999999,4,,,,,,,,"), "line 3: step is"));
  CHECK(contains(message("2,4,,,,,,,"), "line 3 has 9 cells; 10 are needed"));
  CHECK(contains(message("2,4,,,,,,,,,"), "line 3 has 11 cells"));
  CHECK(contains(message(""), "line 3 has 1 cells"));
}

TEST_CASE("train/metrics: files that can't be opened or written are reported with the reason") {
  const ScratchFolder folder;
  CHECK(contains(error_of([&] { MetricsFile::read(folder / "missing.csv"); }),
                 "missing.csv: No such file or directory"));
  CHECK(contains(error_of([&] { MetricsFile::read(folder.path()); }), "Is a directory"));
  CHECK(contains(error_of([&] { MetricsFile file(folder / "no/such/metrics.csv"); }),
                 "No such file or directory"));
  CHECK(contains(error_of([&] { MetricsFile file(folder.path()); }), "Is a directory"));
  if (std::filesystem::exists("/dev/full"))
    CHECK(contains(error_of([&] { MetricsFile file("/dev/full"); }),
                   "can't write /dev/full: No space left on device"));
}

TEST_CASE("train/metrics: a full disk costs the row that does not fit and nothing else") {
  const ScratchFolder folder;
  const auto path = folder / "metrics.csv";
  write_rows(path, {1, 2});
  const std::string before = file_bytes(path);
  MetricsFile file(path);
  std::string append_error, cut_error;
  {
    const DiskLimit limit(before.size() + 5);
    append_error = error_of([&] { file.append(train_row(3, 0.3)); });
  }
  CHECK(contains(append_error, "can't write " + path.string() + ": File too large"));
  CHECK(file_bytes(path) == before);
  {
    const DiskLimit limit(20);
    cut_error = error_of([&] { MetricsFile::cut_back(path, 1); });
  }
  CHECK(contains(cut_error, "can't write " + path.string() + ": File too large"));
  CHECK(file_bytes(path) == before);
  CHECK(folder.files() == 1);
  file.append(train_row(3, 0.3));
  CHECK(steps_of(MetricsFile::read(path)) == std::vector<int64_t>{1, 2, 3});
}

}  // namespace mixgrad
