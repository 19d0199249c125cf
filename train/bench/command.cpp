#include "train/bench/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>

#include "tensor/cpu_info.h"
#include "tensor/error.h"
#include "train/options.h"
#include "train/progress.h"

namespace mixgrad {

namespace {

std::regex parse_filter(const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& error) {
    throw UsageError(str("[bench] bad regular expression '", text, "': ", error.what()));
  }
}

/// The CPU's name, from /proc/cpuinfo.
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

std::string fixed(double value, int digits) { return str(std::fixed, std::setprecision(digits), value); }

/// Four significant digits; whole numbers as they are.
std::string number(double value) {
  if (value == std::round(value) || !std::isfinite(value)) return fixed(value, 0);
  const int before_point = static_cast<int>(std::floor(std::log10(std::abs(value)))) + 1;
  return fixed(value, std::clamp(4 - before_point, 0, 6));
}

std::string percent(double share) { return share > 0 ? fixed(100 * share, 1) + " %" : ""; }
std::string giga(double rate) { return rate > 0 ? number(rate / 1e9) : ""; }

/// Rows of cells, the first column to the left, the others to the right.
void print_table(std::ostream& out, std::vector<std::vector<std::string>> rows) {
  std::vector<size_t> widths;
  for (auto& row : rows) {
    while (row.size() > 1 && row.back().empty()) row.pop_back();
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      out << "  " << (i == 0 ? std::left : std::right) << std::setw(static_cast<int>(widths[i])) << row[i];
    }
    out << '\n';
  }
}

std::string peaks_text(const Peaks& peaks) {
  std::string text = str(peaks.arithmetic, ' ', giga(peaks.flops_s), " GFLOP/s");
  for (const MemoryLevel& level : peaks.levels) {
    text += str(", ", level.name, " read ", giga(level.read_bytes_s), " copy ", giga(level.copy_bytes_s));
  }
  return text + " GB/s";
}

nlohmann::ordered_json to_json(const Peaks& peaks) {
  nlohmann::ordered_json levels = nlohmann::ordered_json::array();
  for (const MemoryLevel& level : peaks.levels) {
    levels.push_back({{"name", level.name},
                      {"bytes", level.bytes},
                      {"read_bytes_s", level.read_bytes_s},
                      {"copy_bytes_s", level.copy_bytes_s}});
  }
  return {{"threads", peaks.threads},
          {"arithmetic", peaks.arithmetic},
          {"flops_s", peaks.flops_s},
          {"levels", levels}};
}

nlohmann::ordered_json to_json(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

nlohmann::ordered_json to_json(const Figure& figure, const Peaks& peaks) {
  nlohmann::ordered_json json = {{"name", figure.name},
                                 {"calls", figure.seconds.size()},
                                 {"seconds", to_json(spread_of(figure.seconds))}};
  const double seconds = figure.median_seconds();
  if (figure.flops > 0) {
    json["flops"] = figure.flops;
    json["flops_s"] = figure.flops / seconds;
  }
  if (figure.bytes > 0) {
    json["moved_bytes"] = figure.bytes;
    json["moved_bytes_s"] = figure.bytes / seconds;
  }
  if (figure.flops > 0 || figure.bytes > 0) json["share_of_peak"] = share_of_peak(figure, peaks);
  if (figure.tokens > 0) json["tokens_s"] = static_cast<double>(figure.tokens) / seconds;
  if (figure.peak_bytes > 0) json["peak_bytes"] = figure.peak_bytes;
  return json;
}

nlohmann::ordered_json to_json(const Comparison& comparison) {
  nlohmann::ordered_json json = {{"name", comparison.name},
                                 {"ours_seconds", to_json(spread_of(comparison.our_seconds))},
                                 {"peer_seconds", to_json(spread_of(comparison.peer_seconds))},
                                 {"ratio", to_json(comparison.ratio())}};
  if (comparison.our_peak_bytes > 0 && comparison.peer_peak_bytes > 0) {
    json["ours_peak_bytes"] = comparison.our_peak_bytes;
    json["peer_peak_bytes"] = comparison.peer_peak_bytes;
  }
  return json;
}

void print_figures(std::ostream& out, const std::vector<Figure>& figures, const Peaks& peaks) {
  if (figures.empty()) return;
  std::vector<std::vector<std::string>> rows = {
      {"", "median ms", "min", "max", "GFLOP/s", "GB/s", "of peak", "tokens/s", "ns/token"}};
  for (const Figure& figure : figures) {
    const Spread ms = spread_of(figure.seconds);
    const double seconds = ms.median;
    const auto tokens = static_cast<double>(figure.tokens);
    rows.push_back({figure.name, number(1e3 * ms.median), number(1e3 * ms.min), number(1e3 * ms.max),
                    giga(figure.flops / seconds), giga(figure.bytes / seconds),
                    percent(share_of_peak(figure, peaks)), tokens > 0 ? number(tokens / seconds) : "",
                    tokens > 0 ? number(1e9 * seconds / tokens) : ""});
  }
  print_table(out, rows);
}

void print_slowest(std::ostream& out, const std::vector<Figure>& slowest, const Peaks& peaks) {
  out << "  slowest by share of the peak:\n";
  std::vector<std::vector<std::string>> rows;
  for (const Figure& figure : slowest) rows.push_back({figure.name, percent(share_of_peak(figure, peaks))});
  print_table(out, rows);
}

void print_comparisons(std::ostream& out, const std::vector<Comparison>& comparisons) {
  std::vector<std::vector<std::string>> rows = {
      {"against the peer", "rounds", "ours ms", "peer ms", "peer/ours", "min", "max"}};
  for (const Comparison& comparison : comparisons) {
    const Spread ratio = comparison.ratio();
    rows.push_back({comparison.name, str(comparison.our_seconds.size()),
                    number(1e3 * spread_of(comparison.our_seconds).median),
                    number(1e3 * spread_of(comparison.peer_seconds).median), fixed(ratio.median, 2),
                    fixed(ratio.min, 2), fixed(ratio.max, 2)});
  }
  print_table(out, rows);
  for (const Comparison& comparison : comparisons) {
    if (comparison.our_peak_bytes == 0 || comparison.peer_peak_bytes == 0) continue;
    const auto ours = static_cast<double>(comparison.our_peak_bytes);
    const auto peer = static_cast<double>(comparison.peer_peak_bytes);
    out << "  " << comparison.name << ": peak memory of the process " << bytes_text(ours) << ", the peer's "
        << bytes_text(peer) << ", ours is " << fixed(ours / peer, 2) << " of it\n";
  }
}

}  // namespace

void BenchOptions::validate() const {
  check_count("threads", threads, 0, most_threads());
  check_usage(seconds >= 0 && seconds <= 3600, "[options] --seconds: ", seconds, "; allowed: 0 to 3600");
  check_count("rounds", rounds, 1, 1000);
  check_count("attempts", attempts, 1, 100);
  parse_filter(filter);
  parse_precision(precision);
  parse_device(device);
  check_json_path(json);
}

void declare_bench_options(CLI::App& app, BenchOptions& o) {
  app.option_defaults()->always_capture_default();
  const auto common = [&](auto* option) { option->group("Measuring"); };
  common(app.add_option("--device", o.device, "cpu, cuda, cuda:N, or auto: a GPU if there is one"));
  common(app.add_option("--threads", o.threads, "0: all that the machine has"));
  common(app.add_option("--precision", o.precision, precision_help));
  common(app.add_option("--seconds", o.seconds, "For each figure, in each round; at least three calls"));
  common(app.add_option("--filter", o.filter, "Only figures whose names match this regular expression"));
  common(app.add_option("--json", o.json, "Also write everything to this file"));
  common(app.add_option("--against", o.against,
                        "Command of a peer that prints CSV with the columns figure and ms; runs in turns"));
  common(app.add_option("--rounds", o.rounds, "With --against: how many turns"));
  common(app.add_option("--attempts", o.attempts,
                        "Measure again, up to so often, while others disturb the machine"));
}

SetResult run_set(const BenchSet& set, const BenchOptions& options, const Instruments& instruments) {
  const std::regex filter = parse_filter(options.filter);
  const Measuring measuring{options.seconds,
                            [&](const std::string& name) { return std::regex_search(name, filter); },
                            parse_device(options.device)};
  const auto any_wanted = [&](const auto& named) {
    return std::any_of(named.begin(), named.end(),
                       [&](const auto& each) { return measuring.wanted(each.name); });
  };
  SetResult result;
  result.name = set.name;
  result.slowest = set.slowest;
  const auto measure = [&] {
    Findings all;
    Rounds rounds;
    const int64_t turns = options.against.empty() ? 1 : options.rounds;
    for (int64_t turn = 0; turn < turns; ++turn) {
      std::vector<PeerFigure> theirs;  // first: a command that can't be run shows at once
      if (!options.against.empty()) theirs = run_peer(options.against);
      Findings ours;
      ours.attempt(set.name, [&] { ours.append(set.measure(measuring)); });
      check_usage(!ours.failures.empty() || any_wanted(ours.figures) || any_wanted(ours.derived),
                  "[bench] no figure of '", set.name, "' matches '", options.filter, "'");
      if (!options.against.empty() && !ours.figures.empty()) rounds.add(ours, theirs);
      all.append(std::move(ours));
    }
    result.comparisons = rounds.comparisons();
    return all;
  };
  result.measured = measure_undisturbed(
      instruments, static_cast<int>(options.attempts), measure, [&](const std::string& disturbance) {
        std::cerr << set.name << ": disturbed (" << disturbance << "), measured again\n";
      });
  return result;
}

void print_set(std::ostream& out, const SetResult& result) {
  const Conditions& conditions = result.measured.conditions;
  const Findings& findings = result.measured.findings;
  out << result.name << '\n'
      << "  peaks before: " << peaks_text(conditions.before) << '\n'
      << "  peaks after:  " << peaks_text(conditions.after) << "; others took "
      << fixed(100 * conditions.others_share, 1) << " % of the machine\n";
  if (!conditions.disturbance.empty()) {
    out << "  DISTURBED in each of " << conditions.attempts << " attempts: " << conditions.disturbance
        << ". These figures mean little.\n";
  }
  print_figures(out, findings.figures, conditions.before);
  for (const Derived& derived : findings.derived) {
    out << "  " << derived.name << ": " << number(derived.value) << (derived.meaning.empty() ? "" : " ")
        << derived.meaning << '\n';
  }
  if (!result.comparisons.empty()) print_comparisons(out, result.comparisons);
  const std::vector<Figure> slowest = slowest_by_share(findings.figures, conditions.before, result.slowest);
  if (!slowest.empty()) print_slowest(out, slowest, conditions.before);
  for (const std::string& failure : findings.failures) out << "  FAILED  " << failure << '\n';
  out << std::flush;
}

nlohmann::ordered_json to_json(const SetResult& result) {
  const Conditions& conditions = result.measured.conditions;
  nlohmann::ordered_json figures = nlohmann::ordered_json::array();
  for (const Figure& figure : result.measured.findings.figures) {
    figures.push_back(to_json(figure, conditions.before));
  }
  nlohmann::ordered_json derived = nlohmann::ordered_json::array();
  for (const Derived& each : result.measured.findings.derived) {
    derived.push_back({{"name", each.name}, {"value", each.value}, {"meaning", each.meaning}});
  }
  nlohmann::ordered_json comparisons = nlohmann::ordered_json::array();
  for (const Comparison& comparison : result.comparisons) comparisons.push_back(to_json(comparison));
  nlohmann::ordered_json slowest = nlohmann::ordered_json::array();
  for (const Figure& figure :
       slowest_by_share(result.measured.findings.figures, conditions.before, result.slowest)) {
    slowest.push_back({{"name", figure.name}, {"share_of_peak", share_of_peak(figure, conditions.before)}});
  }
  return {{"name", result.name},
          {"peaks_before", to_json(conditions.before)},
          {"peaks_after", to_json(conditions.after)},
          {"others_share", conditions.others_share},
          {"attempts", conditions.attempts},
          {"disturbance", conditions.disturbance},
          {"figures", figures},
          {"derived", derived},
          {"failures", result.measured.findings.failures},
          {"against", comparisons},
          {"slowest", slowest}};
}

std::string machine_text(int threads, Device device) {
  return str("machine  ", cpu_name(), ", ", cpu_description(), "; ", threads,
             threads == 1 ? " thread" : " threads", "\ndevice   ", describe(device), "\nbuild    mixgrad ",
             MIXGRAD_VERSION, ", ", MIXGRAD_BUILD, ", compiler ", __VERSION__, "; BLAS ", blas_description(),
             '\n');
}

nlohmann::ordered_json machine_json(int threads, Device device) {
  return {{"cpu", cpu_name()},          {"hardware", cpu_description()}, {"threads", threads},
          {"device", describe(device)}, {"version", MIXGRAD_VERSION},    {"build", MIXGRAD_BUILD},
          {"compiler", __VERSION__},    {"blas", blas_description()}};
}

}  // namespace mixgrad
