#include "train/bench/peer.h"

#include <sys/wait.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <sstream>

#include "tensor/error.h"

namespace mixgrad {

namespace {

std::vector<std::string> split(const std::string& line, char separator) {
  std::vector<std::string> fields;
  std::istringstream in(line);
  for (std::string field; std::getline(in, field, separator);) fields.push_back(field);
  return fields;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  for (std::string& line : lines) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
  }
  std::erase(lines, "");
  return lines;
}

template <class Number>
Number number(const std::string& text, const std::string& line) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && end == text.data() + text.size() && value > 0, "[peer] '", text,
        "' in the line '", line, "'; allowed: a number above 0");
  return value;
}

std::string last_line(const std::string& output) {
  const std::vector<std::string> lines = lines_of(output);
  return lines.empty() ? "it printed nothing" : "its last line: " + lines.back();
}

/// What an ended process says of itself; empty: all is well.
std::string failure(int status) {
  if (WIFSIGNALED(status)) return str("was ended by signal ", WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : str("failed with exit code ", WEXITSTATUS(status));
}

std::vector<std::string> names(const auto& figures) {
  std::vector<std::string> result;
  for (const auto& figure : figures) result.push_back("'" + figure.name + "'");
  return result;
}

}  // namespace

std::vector<PeerFigure> parse_peer(const std::string& output) {
  std::vector<PeerFigure> figures;
  std::vector<std::string> header;
  for (const std::string& line : lines_of(output)) {
    const std::vector<std::string> fields = split(line, ',');
    if (header.empty()) {
      const auto has = [&](const char* column) {
        return std::find(fields.begin(), fields.end(), column) != fields.end();
      };
      if (has("figure") && has("ms")) header = fields;
      continue;
    }
    if (fields.size() != header.size()) continue;
    PeerFigure figure;
    for (size_t i = 0; i < header.size(); ++i) {
      if (header[i] == "figure") figure.name = fields[i];
      if (header[i] == "ms") figure.ms = number<double>(fields[i], line);
      if (header[i] == "peak_bytes") figure.peak_bytes = number<int64_t>(fields[i], line);
    }
    figures.push_back(std::move(figure));
  }
  return figures;
}

std::vector<PeerFigure> run_peer(const std::string& command) {
  const std::string shell = "{ " + command + "\n} 2>&1 </dev/null";
  FILE* pipe = ::popen(shell.c_str(), "r");
  check(pipe != nullptr, "[peer] the shell can't be started");
  std::string output;
  char piece[4096];
  for (size_t bytes; (bytes = std::fread(piece, 1, sizeof piece, pipe)) > 0;) output.append(piece, bytes);
  const std::string failed = failure(::pclose(pipe));
  check(failed.empty(), "[peer] '", command, "' ", failed, "; ", last_line(output));
  std::vector<PeerFigure> figures = parse_peer(output);
  check(!figures.empty(), "[peer] '", command,
        "' printed no line of CSV behind a header with figure and ms; ", last_line(output));
  return figures;
}

Spread Comparison::ratio() const {
  std::vector<double> ratios;
  for (size_t i = 0; i < our_seconds.size(); ++i) ratios.push_back(peer_seconds[i] / our_seconds[i]);
  return spread_of(ratios);
}

void Rounds::add(const Findings& ours, const std::vector<PeerFigure>& peer) {
  bool any = false;
  for (const PeerFigure& theirs : peer) {
    const auto same = std::find_if(ours.figures.begin(), ours.figures.end(),
                                   [&](const Figure& figure) { return figure.name == theirs.name; });
    if (same == ours.figures.end()) continue;
    any = true;
    auto entry = std::find_if(comparisons_.begin(), comparisons_.end(),
                              [&](const Comparison& known) { return known.name == theirs.name; });
    if (entry == comparisons_.end()) entry = comparisons_.insert(entry, Comparison{theirs.name, {}, {}});
    entry->our_seconds.push_back(same->median_seconds());
    entry->peer_seconds.push_back(theirs.ms / 1000);
    entry->our_peak_bytes = std::max(entry->our_peak_bytes, same->peak_bytes);
    entry->peer_peak_bytes = std::max(entry->peer_peak_bytes, theirs.peak_bytes);
  }
  check(any, "[peer] no figure of the peer has a name of ours; its: ", join(names(peer)),
        "; ours: ", join(names(ours.figures)));
}

}  // namespace mixgrad
