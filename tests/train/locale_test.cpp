// Under a locale with a decimal comma and points between thousands, every number is written as under none.
#include <doctest/doctest.h>

#include <limits>
#include <locale>

#include "nn/mixer.h"
#include "tests/train/programs.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/tokenizer.h"

namespace mixgrad {
namespace {

struct DecimalComma : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

/// While it lives, the program's locale has a decimal comma.
class CommaLocale {
 public:
  CommaLocale() : old_(std::locale::global(std::locale(std::locale::classic(), new DecimalComma))) {}
  ~CommaLocale() { std::locale::global(old_); }
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;

 private:
  const std::locale old_;
};

TEST_CASE("train/locale: numbers are written without one") {
  const CommaLocale comma;
  std::ostringstream plain;
  plain << 1024.5;
  REQUIRE(plain.str() == "1.024,5");  // the locale is at work
  CHECK(str(1024, ' ', 0.5, ' ', int64_t{1} << 20) == "1024 0.5 1048576");
  CHECK(parse_pattern("gma(sharpness=0.5,components=1024)", 1)[0].text() ==
        "gma(components=1024,sharpness=0.5)");
  CHECK(bytes_text(1.5 * (1 << 20)) == "1.5 MiB");
  CHECK(Tokenizer::make("char", "\u200b").token_text(0) == "\\u{200B}");
}

TEST_CASE("train/locale: a run is the same under a decimal comma") {
  const ScratchFolder folder;
  write_bytes(folder / "text", words_text(200));
  TrainOptions plain = small_options(folder / "text", folder / "plain"), comma = plain;
  comma.out = folder / "comma";
  const std::string expected = train_quietly(plain);
  std::string output;
  {
    const CommaLocale locale;
    output = train_quietly(comma);
  }
  for (const char* file : {"run.json", "loss.png", "responsibilities.png"})
    CHECK(file_bytes(comma.out / file) == file_bytes(plain.out / file));
  const auto rows = MetricsFile::read(comma.out / "metrics.csv"),
             want = MetricsFile::read(plain.out / "metrics.csv");
  REQUIRE(rows.size() == want.size());
  for (size_t i = 0; i < rows.size(); ++i) CHECK(rows[i].train_loss == want[i].train_loss);
  const auto model_line = [](const std::string& text) {
    const size_t begin = text.find("model ");
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  CHECK(model_line(output) == model_line(expected));
}

TEST_CASE("train/locale: no number has no sign") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(str(nan, ' ', -nan, ' ', -static_cast<float>(nan)) == "nan nan nan");
}

}  // namespace
}  // namespace mixgrad
