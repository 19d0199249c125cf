// Errors and the text helpers that make their messages.
//
// Every message is one line: [where] what is wrong, the value received, what is allowed.
// Programs catch Error once, in main: UsageError exits with 2, any other Error with 1.
#pragma once

#include <cmath>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace mixgrad {

/// Something failed while working: a file, a shape, a number.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What the user asked for can't be done: an unknown name, a value out of range, an impossible size.
struct UsageError : Error {
  using Error::Error;
};

/// Writes a part of a text; NaN without the sign that it may have.
template <class Part>
void write_part(std::ostream& out, const Part& part) {
  if constexpr (std::is_floating_point_v<Part>) {
    if (std::isnan(part)) {
      out << "nan";
      return;
    }
  }
  out << part;
}

/// The parts, written one after the other: str("width ", 7) is "width 7". Numbers are the same under every
/// locale.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (write_part(out, parts), ...);
  return out.str();
}

/// Throws Error(str(parts...)) unless ok.
template <class... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) throw Error(str(parts...));
}

/// Throws UsageError(str(parts...)) unless ok.
template <class... Parts>
void check_usage(bool ok, const Parts&... parts) {
  if (!ok) throw UsageError(str(parts...));
}

/// "a, b, c"
std::string join(const std::vector<std::string>& words, std::string_view separator = ", ");

/// The candidate with the smallest edit distance to word; empty when none is close enough to be a likely
/// typo.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace mixgrad
