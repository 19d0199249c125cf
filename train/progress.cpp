#include "train/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "tensor/error.h"

namespace mixgrad {

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const auto two_digits = [](int64_t n) { return str(n < 10 ? "0" : "", n); };
  if (seconds < 1) return str(std::llround(1000 * seconds), " ms");
  if (whole < 60) return str(whole, " s");
  if (whole < 3600) return str(whole / 60, " min ", two_digits(whole % 60), " s");
  return str(whole / 3600, " h ", two_digits(whole % 3600 / 60), " min");
}

std::string bytes_text(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  std::ostringstream out;
  out << std::fixed << std::setprecision(unit == 0 ? 0 : 1) << value << ' ' << units[unit];
  return out.str();
}

Progress::Progress(int64_t log_every, int64_t total_steps)
    : log_every_(log_every), terminal_(isatty(STDOUT_FILENO) != 0), total_steps_(total_steps) {}

void Progress::show(const MetricsRow& row) {
  const double step_ms = row.step_ms.value_or(0);
  mean_step_ms_ = mean_step_ms_ == 0 ? step_ms : 0.95 * mean_step_ms_ + 0.05 * step_ms;
  const bool evaluated = row.val_loss.has_value();
  if (!terminal_ && !evaluated && row.step % log_every_ != 0 && row.step != 1) return;

  std::ostringstream line;
  line << "step " << row.step << '/' << total_steps_ << std::fixed << std::setprecision(4) << "  loss "
       << row.train_loss.value_or(NAN);
  if (evaluated) {
    line << "  val " << *row.val_loss << "  bits/byte " << row.val_bits_per_byte.value_or(NAN);
  }
  line << std::defaultfloat << std::setprecision(3) << "  lr " << row.learning_rate.value_or(NAN) << "  norm "
       << row.grad_norm.value_or(NAN) << std::fixed << std::setprecision(1) << "  " << step_ms << " ms  "
       << std::setprecision(0) << row.tokens_per_s.value_or(0) << " tokens/s  "
       << bytes_text(row.peak_memory_bytes.value_or(0)) << "  eta "
       << duration_text(static_cast<double>(total_steps_ - row.step) * mean_step_ms_ / 1000);
  if (evaluated || !terminal_) {
    say(line.str());
  } else {
    std::cout << "\r\033[K" << line.str() << std::flush;
    line_open_ = true;
  }
}

void Progress::say(const std::string& line) {
  std::cout << (line_open_ ? "\r\033[K" : "") << line << '\n' << std::flush;
  line_open_ = false;
}

}  // namespace mixgrad
