#include "train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <iostream>

#include "tensor/error.h"

namespace mixgrad {

namespace {

/// Columns of the terminal; a longer line would wrap and could not be rewritten.
size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const auto two_digits = [](int64_t n) { return str(n < 10 ? "0" : "", n); };
  if (seconds < 1) return str(std::llround(1000 * seconds), " ms");
  if (whole < 60) return str(whole, " s");
  if (whole < 3600) return str(whole / 60, " min ", two_digits(whole % 60), " s");
  return str(whole / 3600, " h ", two_digits(whole % 3600 / 60), " min");
}

std::string bytes_text(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return str(std::fixed, std::setprecision(unit == 0 ? 0 : 1), bytes, ' ', units[unit]);
}

std::string shell_word(const std::string& word) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::strchr("_-./=+:,@%", c) != nullptr;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

Progress::Progress(int64_t log_every)
    : log_every_(log_every), terminal_(isatty(STDOUT_FILENO) != 0), start_(Clock::now()) {}

void Progress::plan(int64_t done, int64_t total) {
  first_step_ = done;
  total_steps_ = total;
  start_ = Clock::now();
}

/// By the clock, so that evaluations and checkpoints count.
std::string Progress::remaining(int64_t step) const {
  if (total_steps_ == 0 || step == first_step_) return "?";
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  return duration_text(seconds / static_cast<double>(step - first_step_) *
                       static_cast<double>(total_steps_ - step));
}

std::string Progress::line(const MetricsRow& row) const {
  const std::string total = total_steps_ > 0 ? str(total_steps_) : "?";
  const std::string trained =
      str("step ", std::setw(static_cast<int>(std::max<size_t>(4, total.size()))), row.step, '/', total,
          std::fixed, std::setprecision(4), "  loss ", row.train_loss.value_or(NAN), std::scientific,
          std::setprecision(2), "  lr ", row.learning_rate.value_or(NAN), std::fixed, "  norm ", std::setw(5),
          row.grad_norm.value_or(NAN), std::setprecision(1), "  ", std::setw(6), row.step_ms.value_or(NAN),
          " ms  ", std::setprecision(0), std::setw(6), row.tokens_per_s.value_or(NAN), " tokens/s  ",
          bytes_text(static_cast<double>(row.peak_memory_bytes.value_or(0))), "  eta ", remaining(row.step));
  if (!row.val_loss) return trained;
  return str(trained, std::fixed, std::setprecision(4), "  val loss ", *row.val_loss, "  bits/byte ",
             row.val_bits_per_byte.value_or(NAN));
}

void Progress::show(const MetricsRow& row) {
  const bool evaluated = row.val_loss.has_value();
  const bool logged = evaluated || row.step == first_step_ + 1 || row.step % log_every_ == 0;
  if (terminal_ && !evaluated) {
    std::cout << "\r\033[K" << line(row).substr(0, terminal_columns() - 1) << std::flush;
    line_open_ = true;
  } else if (logged) {
    say(line(row));
  }
}

void Progress::say(const std::string& line) {
  std::cout << (line_open_ ? "\r\033[K" : "") << line << '\n' << std::flush;
  line_open_ = false;
}

}  // namespace mixgrad
