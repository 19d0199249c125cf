#include "train/bench/figure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <new>

#include "tensor/error.h"

namespace mixgrad {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t least_calls = 3;

}  // namespace

Spread spread_of(std::vector<double> values) {
  check(!values.empty(), "[bench] nothing was measured");
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {median, values.front(), values.back()};
}

double share_of_peak(const Figure& figure, const Peaks& peaks) {
  const double arithmetic = figure.flops / peaks.flops_s;
  const MemoryLevel& level = peaks.level_of(figure.bytes);
  const double memory = figure.bytes / (figure.only_reads ? level.read_bytes_s : level.copy_bytes_s);
  return std::max(arithmetic, memory) / figure.median_seconds();
}

std::vector<Figure> slowest_by_share(const std::vector<Figure>& figures, const Peaks& peaks, size_t count) {
  std::vector<Figure> slowest;
  std::copy_if(figures.begin(), figures.end(), std::back_inserter(slowest),
               [&](const Figure& figure) { return share_of_peak(figure, peaks) > 0; });
  std::stable_sort(slowest.begin(), slowest.end(), [&](const Figure& a, const Figure& b) {
    return share_of_peak(a, peaks) < share_of_peak(b, peaks);
  });
  slowest.resize(std::min(count, slowest.size()));
  return slowest;
}

void Findings::attempt(const std::string& member, const std::function<void()>& measure) {
  try {
    measure();
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    failures.push_back(str(member, ": ", error.what()));
  } catch (const std::bad_alloc&) {
    failures.push_back(str(member, ": [memory] out of memory"));
  }
}

void Findings::append(Findings&& round) {
  for (std::string& failure : round.failures) {
    if (std::ranges::count(failures, failure) == 0) failures.push_back(std::move(failure));
  }
  round.failures = failures;
  if (figures.empty()) {
    *this = std::move(round);
    return;
  }
  for (Figure& more : round.figures) {
    const auto same = std::find_if(figures.begin(), figures.end(),
                                   [&](const Figure& figure) { return figure.name == more.name; });
    if (same == figures.end()) {
      figures.push_back(std::move(more));
    } else {
      same->seconds.insert(same->seconds.end(), more.seconds.begin(), more.seconds.end());
      same->peak_bytes = std::max(same->peak_bytes, more.peak_bytes);
    }
  }
  derived = std::move(round.derived);
}

std::vector<std::vector<double>> time_parts(double seconds,
                                            const std::function<std::vector<double>()>& call) {
  std::vector<std::vector<double>> times(call().size());
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  for (int64_t calls = 0; calls < least_calls || Clock::now() < end; ++calls) {
    const std::vector<double> parts = call();
    for (size_t i = 0; i < times.size(); ++i) times[i].push_back(parts[i]);
  }
  return times;
}

double clock_seconds(Device device) {
  synchronize(device);
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

std::vector<double> time_calls(double seconds, Device device, const std::function<void()>& call) {
  return time_parts(seconds, [&]() -> std::vector<double> {
    const double start = clock_seconds(device);
    call();
    return {clock_seconds(device) - start};
  })[0];
}

double log_log_slope(const std::vector<double>& x, const std::vector<double>& y) {
  check(x.size() == y.size() && x.size() >= 2, "[bench] a slope needs two points at least");
  const auto n = static_cast<double>(x.size());
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double u = std::log(x[i]), v = std::log(y[i]);
    sx += u;
    sy += v;
    sxx += u * u;
    sxy += u * v;
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

}  // namespace mixgrad
