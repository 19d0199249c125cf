// The two pictures of a training run: first what both share, then loss.png, then responsibilities.png.
#include "train/plots.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <iterator>
#include <numeric>
#include <tuple>

#include "tensor/error.h"
#include "train/tokenizer.h"

namespace mixgrad {
namespace {

constexpr Rgb kBackground{255, 255, 255}, kInk{40, 42, 48}, kQuiet{112, 116, 124}, kGrid{230, 232, 236};
constexpr int64_t kMargin = 16;     // empty border of a picture
constexpr int64_t kGap = 8;         // between a mark and its words
constexpr int64_t kTickLength = 5;  // of the mark on an axis

// The longest beginning of text that fits into max_width, with two dots in place of what is cut off.
std::string shortened(const std::string& text, int64_t max_width, int64_t scale) {
  if (text_width(text, scale) <= max_width) return text;
  std::string start = text;
  while (!start.empty() && text_width(start + "..", scale) > max_width) start.pop_back();
  return start + "..";
}

Box centred_text_box(int64_t x, int64_t top, const std::string& text, int64_t scale) {
  const int64_t width = text_width(text, scale);
  return {x - width / 2, top, width, text_height(scale)};
}

// Right-aligned at right, centred on y as digits are seen: without the room below for descenders.
Box left_label_box(int64_t right, int64_t y, const std::string& text, int64_t scale) {
  const int64_t width = text_width(text, scale);
  return {right - width, y - capital_height(scale) / 2, width, text_height(scale)};
}

void draw_text(Canvas& canvas, const Box& box, const std::string& text, Rgb colour, int64_t scale) {
  canvas.text(box.left, box.top, text, colour, scale);
}

// Title of a vertical axis, centred on the middle of area.
void draw_vertical_title(Canvas& canvas, int64_t left, const Box& area, const std::string& text,
                         int64_t scale) {
  const int64_t top = area.top + (area.height - text_width(text, scale)) / 2;
  canvas.text(left, top, text, kInk, scale, TextDirection::up);
}

int64_t widest_label(const std::vector<Tick>& ticks, int64_t scale) {
  int64_t width = 0;
  for (const Tick& tick : ticks) width = std::max(width, text_width(tick.label, scale));
  return width;
}

int64_t pixel(double coordinate) { return static_cast<int64_t>(std::floor(coordinate)); }

}  // namespace

double Axes::to_x(double x) const { return area.left + (x - x_min) / (x_max - x_min) * area.width; }
double Axes::to_y(double y) const { return area.bottom() - (y - y_min) / (y_max - y_min) * area.height; }

std::vector<double> nice_ticks(double low, double high, int64_t max_ticks, double smallest_step) {
  const double least = std::max((high - low) / static_cast<double>(max_ticks), smallest_step);
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0})
    if (factor * power >= least * (1 - 1e-9)) step = factor * power;
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i <= std::floor(high / step + 1e-9); ++i)
    ticks.push_back(i == 0 ? 0 : i * step);  // 0, never -0
  return ticks;
}

// Loss over steps.

namespace {

constexpr int64_t kLossWidth = 900, kLossHeight = 540;
constexpr int64_t kLossScale = 2;       // of its text
constexpr double kLargestLoss = 1e100;  // beyond it, differences and pixels would leave the range of double
constexpr int64_t kMarkHeight = 12;     // of the mark of a loss that is not finite
constexpr double kTrainThickness = 1.5, kValidationThickness = 2, kMarkerRadius = 3.5;

bool is_drawable(const LossPoint& point) { return std::abs(point.loss) <= kLargestLoss; }

std::vector<LossPoint> drawable(const std::vector<LossPoint>& points) {
  std::vector<LossPoint> kept;
  std::ranges::copy_if(points, std::back_inserter(kept), is_drawable);
  return kept;
}

// The stretches between points that can't be drawn, which no line may bridge.
std::vector<std::vector<LossPoint>> stretches(const std::vector<LossPoint>& points) {
  std::vector<std::vector<LossPoint>> all;
  for (auto begin = points.begin(); begin != points.end();) {
    begin = std::find_if(begin, points.end(), is_drawable);
    const auto end = std::find_if_not(begin, points.end(), is_drawable);
    if (begin != end) all.emplace_back(begin, end);
    begin = end;
  }
  return all;
}

// Each loss as the mean of those around it, `half` on either side, or as many as there are on both; but for
// those nearer to an end than half of that, which would be little smoother than single ones.
std::vector<LossPoint> smoothed(const std::vector<LossPoint>& points, int64_t half) {
  const int64_t count = std::ssize(points);
  std::vector<double> sums(count + 1);
  for (int64_t i = 0; i < count; ++i) sums[i + 1] = sums[i] + points[i].loss;
  std::vector<LossPoint> means;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t reach = std::min({half, i, count - 1 - i});
    if (2 * reach < half) continue;
    const int64_t begin = i - reach, end = i + reach + 1;
    means.push_back({points[i].step, (sums[end] - sums[begin]) / static_cast<double>(end - begin)});
  }
  return means;
}

// 3.25, 12000, 1e+09: as many decimals as a step between ticks needs.
std::string value_label(double value, double step) {
  if (std::abs(value) >= 1e6 || step < 1e-6) return str(std::setprecision(6), value);
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  return str(std::fixed, std::setprecision(decimals), std::abs(value) < step / 2 ? 0.0 : value);
}

// 500, 20k, 1.5M: in the unit of the highest tick.
std::string step_label(double value, double step, double highest) {
  if (value == 0) return "0";
  for (const auto& [unit, suffix] : {std::pair{1e9, "G"}, std::pair{1e6, "M"}, std::pair{1e3, "k"}})
    if (highest >= (unit == 1e3 ? 1e4 : unit)) return value_label(value / unit, step / unit) + suffix;
  return value_label(value, step);
}

double tick_step(const std::vector<double>& ticks) { return ticks.size() > 1 ? ticks[1] - ticks[0] : 1; }

std::pair<double, double> step_range(const std::vector<LossPoint>& points) {
  if (points.empty()) return {0, 100};
  const auto [first, last] = std::ranges::minmax(points, {}, &LossPoint::step);
  const auto low = static_cast<double>(first.step), high = static_cast<double>(last.step);
  return low < high ? std::pair{low, high} : std::pair{std::max(0.0, low - 1), low + 1};
}

// The top of the loss axis, of losses in rising order; see loss_layout.
double robust_top(const std::vector<double>& losses) {
  const int64_t count = std::ssize(losses), highest = count < 10 ? 0 : std::max<int64_t>(1, count / 50);
  const double low = losses.front(), bulk = losses[count - 1 - highest] - low, all = losses.back() - low;
  return all > 5 * bulk ? low + 1.25 * bulk : losses.back();
}

std::pair<double, double> loss_range(const std::vector<double>& losses) {
  if (losses.empty()) return {0, 1};
  const double low = losses.front(), high = robust_top(losses);
  const double least_half = 1e-3 * std::max(1.0, std::abs(high));  // a flat curve still gets an axis
  const double middle = low / 2 + high / 2, half = std::max((high - low) / 2 * 1.08, least_half);
  return {middle - half, middle + half};
}

// The lowest and highest point of each column of pixels, in their order: it looks the same as all of them, of
// which a long run has far more than columns.
std::vector<LossPoint> thinned(const std::vector<LossPoint>& points, const Axes& axes) {
  std::vector<LossPoint> kept;
  for (auto begin = points.begin(); begin != points.end();) {
    const int64_t column = pixel(axes.to_x(static_cast<double>(begin->step)));
    const auto end = std::find_if(begin, points.end(), [&](const LossPoint& point) {
      return pixel(axes.to_x(static_cast<double>(point.step))) != column;
    });
    const auto [low, high] = std::minmax_element(
        begin, end, [](const LossPoint& a, const LossPoint& b) { return a.loss < b.loss; });
    kept.push_back(*std::min(low, high));
    if (low != high) kept.push_back(*std::max(low, high));
    begin = end;
  }
  return kept;
}

// Far above the picture a line keeps its direction well enough at this distance, and its arithmetic stays
// exact.
double bounded_y(const Axes& axes, double loss) { return std::clamp(axes.to_y(loss), -1e6, 1e6); }

void draw_curve(Canvas& canvas, const Axes& axes, const std::vector<LossPoint>& points, double thickness,
                Rgb colour) {
  double last_x = 0, last_y = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const double x = axes.to_x(static_cast<double>(points[i].step)), y = bounded_y(axes, points[i].loss);
    if (i > 0) canvas.line(last_x, last_y, x, y, thickness, colour, axes.area);
    std::tie(last_x, last_y) = std::tie(x, y);
  }
}

// Markers at the first and last step reach over the sides of the axes.
void draw_markers(Canvas& canvas, const Axes& axes, const std::vector<LossPoint>& points, Rgb colour) {
  const auto reach = static_cast<int64_t>(std::ceil(kMarkerRadius));
  const Box clip = {axes.area.left - reach, axes.area.top, axes.area.width + 2 * reach, axes.area.height};
  for (const LossPoint& point : points)
    canvas.disc(axes.to_x(static_cast<double>(point.step)), bounded_y(axes, point.loss), kMarkerRadius,
                colour, clip);
}

void draw_axes(Canvas& canvas, const LossLayout& layout) {
  const Box& area = layout.axes.area;
  for (const Tick& tick : layout.y_ticks) {
    canvas.fill({area.left, pixel(layout.axes.to_y(tick.value)), area.width, 1}, kGrid);
    draw_text(canvas, tick.label_box, tick.label, kInk, kLossScale);
  }
  for (const Tick& tick : layout.x_ticks) {
    const int64_t x = pixel(layout.axes.to_x(tick.value));
    canvas.fill({x, area.top, 1, area.height}, kGrid);
    canvas.fill({x, area.bottom(), 1, kTickLength}, kInk);
    draw_text(canvas, tick.label_box, tick.label, kInk, kLossScale);
  }
  canvas.fill({area.left - 1, area.top, 1, area.height + 1}, kInk);
  canvas.fill({area.left - 1, area.bottom(), area.width + 1, 1}, kInk);
  draw_vertical_title(canvas, kMargin, area, "loss (nats per token)", kLossScale);
  const Box title = centred_text_box(area.left + area.width / 2,
                                     kLossHeight - kMargin - text_height(kLossScale), "step", kLossScale);
  draw_text(canvas, title, "step", kInk, kLossScale);
}

// One entry of the legend: a piece of the curve and its words. Returns where the next entry begins.
int64_t draw_legend_entry(Canvas& canvas, int64_t left, int64_t top, const std::string& words,
                          double thickness, Rgb colour) {
  constexpr int64_t sample = 30;
  const double y = static_cast<double>(top + capital_height(kLossScale) / 2);
  canvas.line(left, y, left + sample, y, thickness, colour, canvas.bounds());
  canvas.text(left + sample + kGap, top, words, kInk, kLossScale);
  return left + sample + kGap + text_width(words, kLossScale) + 3 * kGap;
}

// Marks at the top, where a loss is no number or none that a picture can hold.
void draw_not_finite(Canvas& canvas, const Axes& axes, const std::vector<LossPoint>& points) {
  for (const LossPoint& point : points) {
    if (is_drawable(point)) continue;
    canvas.fill({pixel(axes.to_x(static_cast<double>(point.step))), axes.area.top, 2, kMarkHeight},
                kNotFiniteColour);
  }
}

// Says what the picture does not show, in the upper right corner of its axes, where a falling loss leaves
// room.
void draw_what_is_missing(Canvas& canvas, const LossLayout& layout) {
  const Box& area = layout.axes.area;
  int64_t top = area.top + kGap;
  const auto say = [&](const std::string& text, Rgb colour) {
    const Box box = {area.right() - text_width(text, kLossScale) - kGap, top, text_width(text, kLossScale),
                     text_height(kLossScale)};
    canvas.fill(box, kBackground);
    draw_text(canvas, box, text, colour, kLossScale);
    top += box.height + kGap;
  };
  const auto points = [](int64_t count) { return str(count, count == 1 ? " point is" : " points are"); };
  if (layout.points_above > 0) {
    say(str(points(layout.points_above), " higher, up to ", std::setprecision(4), layout.highest), kQuiet);
  }
  if (layout.points_not_finite > 0) say(points(layout.points_not_finite) + " not finite", kNotFiniteColour);
}

}  // namespace

LossLayout loss_layout(const std::vector<LossPoint>& train, const std::vector<LossPoint>& validation) {
  std::vector<LossPoint> points = drawable(train);
  const int64_t train_count = std::ssize(points);
  std::ranges::copy(drawable(validation), std::back_inserter(points));
  std::vector<double> losses;
  for (const LossPoint& point : points) losses.push_back(point.loss);
  std::ranges::sort(losses);

  LossLayout layout;
  Axes& axes = layout.axes;
  std::tie(axes.x_min, axes.x_max) = step_range(points);
  std::tie(axes.y_min, axes.y_max) = loss_range(losses);
  layout.points_above = losses.end() - std::ranges::upper_bound(losses, axes.y_max);
  if (!losses.empty()) layout.highest = losses.back();
  layout.points_not_finite = std::ssize(train) + std::ssize(validation) - std::ssize(points);
  layout.train_tail = std::max(train_count / 50, std::min<int64_t>(train_count, 10));
  for (int64_t i = train_count - layout.train_tail; i < train_count; ++i)
    layout.train_mean += points[i].loss / static_cast<double>(layout.train_tail);

  const std::vector<double> x_values = nice_ticks(axes.x_min, axes.x_max, 8, 1);
  const std::vector<double> y_values = nice_ticks(axes.y_min, axes.y_max, 7);
  for (const double x : x_values)
    layout.x_ticks.push_back({x, step_label(x, tick_step(x_values), x_values.back()), {}});
  for (const double y : y_values) layout.y_ticks.push_back({y, value_label(y, tick_step(y_values)), {}});

  const int64_t line = text_height(kLossScale);
  const int64_t left = kMargin + line + kGap + widest_label(layout.y_ticks, kLossScale) + kGap;
  const int64_t top = kMargin + line + kGap + line + kGap;     // title, legend
  const int64_t bottom = kMargin + line + kGap + line + kGap;  // tick labels, title of the axis
  const int64_t right = kMargin + widest_label(layout.x_ticks, kLossScale) / 2;
  axes.area = {left, top, kLossWidth - left - right, kLossHeight - top - bottom};
  for (Tick& tick : layout.x_ticks)
    tick.label_box =
        centred_text_box(pixel(axes.to_x(tick.value)), axes.area.bottom() + kGap, tick.label, kLossScale);
  for (Tick& tick : layout.y_ticks)
    tick.label_box =
        left_label_box(axes.area.left - kGap, pixel(axes.to_y(tick.value)), tick.label, kLossScale);
  return layout;
}

void plot_loss(const std::filesystem::path& path, const std::vector<LossPoint>& train,
               const std::vector<LossPoint>& validation, const std::string& title) {
  const LossLayout layout = loss_layout(train, validation);
  const Box& area = layout.axes.area;
  Canvas canvas(kLossWidth, kLossHeight, kBackground);
  canvas.text(area.left, kMargin, shortened(title, kLossWidth - kMargin - area.left, kLossScale), kInk,
              kLossScale);
  draw_axes(canvas, layout);
  draw_what_is_missing(canvas, layout);

  const auto draw = [&](const std::vector<LossPoint>& points, double thickness, Rgb colour) {
    draw_curve(canvas, layout.axes, thinned(points, layout.axes), thickness, colour);
    if (points.size() == 1) draw_markers(canvas, layout.axes, points, colour);
  };
  const std::vector<LossPoint> train_points = drawable(train), validation_points = drawable(validation);
  const int64_t legend_top = area.top - kGap - text_height(kLossScale);
  int64_t legend_left = area.left;
  if (!train_points.empty()) {
    const int64_t half = std::ssize(train_points) / 100;
    for (const auto& stretch : stretches(train)) draw(stretch, kTrainThickness, kTrainColour);
    for (const auto& stretch : stretches(train)) {
      if (half > 0) draw(smoothed(stretch, half), kValidationThickness, kSmoothColour);
    }
    legend_left = draw_legend_entry(canvas, legend_left, legend_top,
                                    str("train ", value_label(layout.train_mean, 1e-4), ", mean of the last ",
                                        layout.train_tail, layout.train_tail == 1 ? " step" : " steps"),
                                    kValidationThickness, half > 0 ? kSmoothColour : kTrainColour);
  }
  if (!validation_points.empty()) {
    for (const auto& stretch : stretches(validation)) draw(stretch, kValidationThickness, kValidationColour);
    draw_legend_entry(canvas, legend_left, legend_top,
                      "validation " + value_label(validation_points.back().loss, 1e-4), kValidationThickness,
                      kValidationColour);
  }
  draw_not_finite(canvas, layout.axes, train);
  draw_not_finite(canvas, layout.axes, validation);
  const bool room_for_markers = std::ssize(validation_points) * 4 * kMarkerRadius <= area.width;
  if (room_for_markers) draw_markers(canvas, layout.axes, validation_points, kValidationColour);
  if (train_points.empty() && validation_points.empty()) {
    const Box box =
        centred_text_box(area.left + area.width / 2, area.top + area.height / 2, "no data yet", kLossScale);
    draw_text(canvas, box, "no data yet", kQuiet, kLossScale);
  }
  canvas.write_png(path);
}

// Responsibilities over an excerpt.

namespace {

constexpr int64_t kMaxWidth = 1600, kMaxHeight = 1200, kMinWidth = 1200;
constexpr int64_t kMaxColumns = 96, kMaxRows = 128;
constexpr int64_t kLargestCell = 26;
constexpr int64_t kTokenWidth = 96;  // most pixels that the words of a token take
constexpr int64_t kBarWidth = 20, kLeastBarHeight = 180;
constexpr int64_t kHeadingScale = 2;
constexpr const char* kPositionTitle = "position of the token";

// A character that the font lacks, by its code point: U+0434.
std::string code_point_text(char32_t c) {
  return str("U+", std::hex, std::uppercase, std::setfill('0'), std::setw(4), static_cast<uint32_t>(c));
}

// Text broken at spaces into lines of at most max_width pixels.
std::vector<std::string> wrapped(const std::string& text, int64_t max_width, int64_t scale) {
  std::vector<std::string> lines(1);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const std::string longer = lines.back().empty() ? word : lines.back() + " " + word;
    if (text_width(longer, scale) <= max_width)
      lines.back() = longer;
    else
      lines.push_back(word);
    begin = end + 1;
  }
  return lines;
}

// The words above the map: title, numbers, explanation.
struct Heading {
  std::string title, numbers;
  std::vector<std::string> explanation;  // lines
};

// Of all responsibility, what goes to components that win no token.
double silent_share(const ComponentUsage& usage) {
  double share = 0;
  for (size_t component = 0; component < usage.mean.size(); ++component)
    if (usage.wins[component] == 0) share += usage.mean[component];
  return share;
}

Heading heading(const Responsibilities& r, const ComponentUsage& usage, int64_t rows, int64_t columns,
                int64_t width) {
  const std::string cut_rows = rows < r.components ? str(" Shown: the ", rows, " most used components.") : "";
  const std::string cut_columns =
      columns < r.tokens ? str(" Shown: the first ", columns, " of ", r.tokens, " tokens.") : "";
  const std::string silent =
      usage.used < r.components
          ? str("; those with a grey number win no token and come last, most used first: they share ",
                std::fixed, std::setprecision(0), 100 * silent_share(usage), " % of the total")
          : "";
  return {
      str("Which component of the mixture takes which token: layer ", r.layer, ", head ", r.head),
      str(usage.used, " of ", r.components, " components win a token; usage entropy ", std::fixed,
          std::setprecision(3), usage.entropy, " of its maximum, log ", r.components,
          " (1 = all used evenly)"),
      wrapped(
          "Each column is one token (\u2423 is a space, \\n a line end, U+ the code point of a character) "
          "and "
          "shares out 1 among the components: the brighter a cell, the larger the share of its component. "
          "Rows are ordered by their strongest token" +
              silent + "." + cut_rows + cut_columns,
          width - 2 * kMargin, kHeadingScale)};
}

int64_t strongest_token(const Responsibilities& r, int64_t component) {
  int64_t best = 0;
  for (int64_t token = 1; token < r.tokens; ++token)
    if (r.gamma[token * r.components + component] > r.gamma[best * r.components + component]) best = token;
  return best;
}

std::vector<int64_t> ordered_components(const Responsibilities& r, const ComponentUsage& usage) {
  std::vector<int64_t> order(r.components), strongest(r.components);
  std::iota(order.begin(), order.end(), 0);
  for (const int64_t component : order) strongest[component] = strongest_token(r, component);
  std::ranges::stable_sort(order, std::greater(), [&](int64_t c) { return usage.mean[c]; });
  order.resize(std::min(r.components, kMaxRows));
  const auto silent =
      std::stable_partition(order.begin(), order.end(), [&](int64_t c) { return usage.wins[c] > 0; });
  std::ranges::stable_sort(order.begin(), silent, {}, [&](int64_t c) { return strongest[c]; });
  return order;
}

int64_t label_scale(int64_t cell_side) { return cell_side >= text_height(2) ? 2 : 1; }

// Every row or column gets words where they fit, else every second one, or third, ...
int64_t label_stride(int64_t cell_side) {
  const int64_t needed = capital_height(label_scale(cell_side)) + 2;
  return (needed + cell_side - 1) / cell_side;
}

// The words of a column: upright where its cell is wide enough (single characters), else running up.
struct TokenLabel {
  std::string text;
  int64_t scale;
  TextDirection direction;
  int64_t width() const {
    return direction == TextDirection::right ? text_width(text, scale) : capital_height(scale);
  }
  int64_t height() const {
    return direction == TextDirection::right ? text_height(scale) : text_width(text, scale);
  }
};

TokenLabel token_label(const std::string& token, int64_t cell_width) {
  const std::string text = token_label_text(token);
  if (text_width(text, kHeadingScale) <= cell_width) return {text, kHeadingScale, TextDirection::right};
  const int64_t scale = label_scale(cell_width);
  return {shortened(text, kTokenWidth, scale), scale, TextDirection::up};
}

int64_t token_label_height(const Responsibilities& r, int64_t columns, int64_t cell_width) {
  int64_t height = 0;
  for (int64_t token = 0; token < columns; ++token)
    height = std::max(height, token_label(r.token_text[token], cell_width).height());
  return height;
}

void draw_cells(Canvas& canvas, const HeatMapLayout& layout, const Responsibilities& r) {
  for (int64_t row = 0; row < std::ssize(layout.components); ++row)
    for (int64_t column = 0; column < layout.columns; ++column) {
      const float gamma = r.gamma[column * r.components + layout.components[row]];
      canvas.fill(layout.cell(row, column), heat_colour(heat_position(gamma)));
    }
}

void draw_rows(Canvas& canvas, const HeatMapLayout& layout, const ComponentUsage& usage) {
  for (const Tick& label : layout.row_labels) {
    const bool wins = usage.wins[layout.components[static_cast<int64_t>(label.value)]] > 0;
    draw_text(canvas, label.label_box, label.label, wins ? kInk : kQuiet, label_scale(layout.cell_height));
  }
  draw_vertical_title(canvas, kMargin, layout.colour_bar, "component", kHeadingScale);
}

void draw_columns(Canvas& canvas, const HeatMapLayout& layout, const Responsibilities& r) {
  for (int64_t column = 0; column < layout.columns; ++column) {
    const Box cell = layout.cell(0, column);
    const TokenLabel label = token_label(r.token_text[column], cell.width);
    // One more pixel to the right: the font leaves its gap between characters there.
    canvas.text(cell.left + (cell.width - label.width()) / 2 + 1, cell.top - kGap / 2 - label.height(),
                label.text, kInk, label.scale, label.direction);
    if (column % 8 != 0) continue;
    const int64_t middle = cell.left + cell.width / 2, bottom = layout.map.bottom();
    canvas.fill({middle, bottom, 1, kTickLength}, kInk);
    draw_text(canvas, centred_text_box(middle, bottom + kGap, str(column), kHeadingScale), str(column), kInk,
              kHeadingScale);
  }
  const int64_t top = layout.map.bottom() + kGap + text_height(kHeadingScale) + kGap;
  draw_text(canvas, {layout.map.left, top, 0, 0}, kPositionTitle, kInk, kHeadingScale);
}

void draw_colour_bar(Canvas& canvas, const HeatMapLayout& layout) {
  const Box& bar = layout.colour_bar;
  for (int64_t y = bar.top; y < bar.bottom(); ++y) {
    const double position = (bar.bottom() - y - 0.5) / static_cast<double>(bar.height);
    canvas.fill({bar.left, y, bar.width, 1}, heat_colour(position));
  }
  for (const Tick& tick : layout.bar_ticks) {
    const int64_t y = pixel(bar.bottom() - heat_position(tick.value) * bar.height);
    canvas.fill({bar.right(), y, kTickLength, 1}, kInk);
    draw_text(canvas, tick.label_box, tick.label, kInk, kHeadingScale);
  }
  const int64_t title_left = bar.right() + kGap + widest_label(layout.bar_ticks, kHeadingScale) + kGap;
  draw_vertical_title(canvas, title_left, bar, "responsibility", kHeadingScale);
}

}  // namespace

std::string token_label_text(const std::string& token) {
  std::string result;
  for (std::string_view rest = token; !rest.empty();) {
    const Utf8Character character = decode_utf8(rest);
    const char32_t c = character.code_point;
    if (!character.valid)
      result +=
          str("\\x", std::hex, std::setfill('0'), std::setw(2), int{static_cast<unsigned char>(rest[0])});
    else if (c == ' ')
      result += "\u2423";
    else if (c == '\n')
      result += "\\n";
    else if (c == '\t')
      result += "\\t";
    else if (c == '\r')
      result += "\\r";
    else if (c == '\\')
      result += "\\\\";
    else
      result += c > 0x20 && c < 0x7f ? std::string(1, static_cast<char>(c)) : code_point_text(c);
    rest.remove_prefix(character.valid ? character.length : 1);
  }
  return result;
}

ComponentUsage component_usage(const Responsibilities& r) {
  check(r.tokens >= 1 && r.components >= 1, "[responsibilities] ", r.tokens, " tokens and ", r.components,
        " components; at least 1 of each is needed");
  check(std::ssize(r.gamma) == r.tokens * r.components && std::ssize(r.token_text) == r.tokens,
        "[responsibilities] ", r.gamma.size(), " values and ", r.token_text.size(), " texts for ", r.tokens,
        " tokens and ", r.components, " components");
  ComponentUsage usage{std::vector<double>(r.components), std::vector<int64_t>(r.components)};
  for (int64_t token = 0; token < r.tokens; ++token) {
    const float* row = &r.gamma[token * r.components];
    for (int64_t component = 0; component < r.components; ++component) {
      check(row[component] >= -1e-3f && row[component] <= 1 + 1e-3f, "[responsibilities] token ", token,
            ", component ", component, ": ", row[component], "; a value in [0, 1] is needed");
      usage.mean[component] += row[component] / static_cast<double>(r.tokens);
    }
    ++usage.wins[std::max_element(row, row + r.components) - row];
  }
  usage.used = r.components - std::ranges::count(usage.wins, 0);
  for (const double mean : usage.mean)
    if (mean > 0) usage.entropy -= mean * std::log(mean);
  usage.entropy = r.components > 1 ? usage.entropy / std::log(static_cast<double>(r.components)) : 1;
  return usage;
}

Box HeatMapLayout::cell(int64_t row, int64_t column) const {
  return {map.left + column * cell_width, map.top + row * cell_height, cell_width, cell_height};
}

double heat_position(double responsibility) { return std::sqrt(std::clamp(responsibility, 0.0, 1.0)); }

Rgb heat_colour(double position) {
  // Corners of a path through colour space whose lightness (CIE L*) rises by about 10 from each to the next,
  // 7 to 91.
  static constexpr std::array<Rgb, 9> corners{{{22, 14, 56},
                                               {44, 36, 104},
                                               {44, 66, 140},
                                               {30, 98, 150},
                                               {20, 129, 146},
                                               {36, 160, 128},
                                               {98, 188, 98},
                                               {176, 210, 76},
                                               {250, 232, 120}}};
  const double along = std::clamp(position, 0.0, 1.0) * (corners.size() - 1);
  const size_t corner = std::min(static_cast<size_t>(along), corners.size() - 2);
  const double part = along - static_cast<double>(corner);
  const Rgb from = corners[corner], to = corners[corner + 1];
  const auto between = [part](uint8_t a, uint8_t b) {
    return static_cast<uint8_t>(std::lround(a + (b - a) * part));
  };
  return {between(from.red, to.red), between(from.green, to.green), between(from.blue, to.blue)};
}

HeatMapLayout heat_map_layout(const Responsibilities& r) {
  const ComponentUsage usage = component_usage(r);
  HeatMapLayout layout;
  layout.components = ordered_components(r, usage);
  layout.columns = std::min(r.tokens, kMaxColumns);
  for (const double value : {0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0})
    layout.bar_ticks.push_back({value, str(value), {}});
  const auto rows = std::ssize(layout.components);

  const int64_t line = text_height(kHeadingScale);
  const int64_t left = kMargin + line + kGap + text_width(str(r.components - 1), kHeadingScale) + kGap;
  const int64_t right =
      3 * kGap + kBarWidth + kGap + widest_label(layout.bar_ticks, kHeadingScale) + kGap + line + kMargin;
  layout.cell_width = std::min(kLargestCell, (kMaxWidth - left - right) / layout.columns);
  const int64_t body_width =
      std::max(layout.columns * layout.cell_width, text_width(kPositionTitle, kHeadingScale));
  layout.width = std::max(kMinWidth, left + body_width + right);

  const int64_t heading_lines =
      2 + std::ssize(heading(r, usage, rows, layout.columns, layout.width).explanation);
  const int64_t token_height = token_label_height(r, layout.columns, layout.cell_width);
  const int64_t top = kMargin + heading_lines * (line + kGap) + kGap + token_height + kGap;
  const int64_t bottom = kGap + line + kGap + line + kMargin;
  layout.cell_height = std::min(kLargestCell, (kMaxHeight - top - bottom) / rows);
  layout.map = {left, top, layout.columns * layout.cell_width, rows * layout.cell_height};
  layout.colour_bar = {left + body_width + 3 * kGap, top, kBarWidth,
                       std::max(layout.map.height, kLeastBarHeight)};
  layout.height = layout.colour_bar.bottom() + bottom;

  for (Tick& tick : layout.bar_ticks) {
    const int64_t y =
        pixel(layout.colour_bar.bottom() - heat_position(tick.value) * layout.colour_bar.height);
    const int64_t width = text_width(tick.label, kHeadingScale);
    tick.label_box = {layout.colour_bar.right() + kGap, y - capital_height(kHeadingScale) / 2, width, line};
  }
  for (int64_t row = 0; row < rows; row += label_stride(layout.cell_height)) {
    const Box cell = layout.cell(row, 0);
    const std::string label = str(layout.components[row]);
    const int64_t scale = label_scale(layout.cell_height);
    layout.row_labels.push_back({static_cast<double>(row), label,
                                 left_label_box(left - kGap, cell.top + cell.height / 2, label, scale)});
  }
  return layout;
}

void plot_responsibilities(const std::filesystem::path& path, const Responsibilities& r) {
  const ComponentUsage usage = component_usage(r);
  const HeatMapLayout layout = heat_map_layout(r);
  const Heading words = heading(r, usage, std::ssize(layout.components), layout.columns, layout.width);
  Canvas canvas(layout.width, layout.height, kBackground);
  int64_t top = kMargin;
  const auto write_line = [&](const std::string& text, Rgb colour) {
    canvas.text(kMargin, top, text, colour, kHeadingScale);
    top += text_height(kHeadingScale) + kGap;
  };
  write_line(words.title, kInk);
  write_line(words.numbers, kInk);
  for (const std::string& line : words.explanation) write_line(line, kQuiet);
  draw_columns(canvas, layout, r);
  draw_rows(canvas, layout, usage);
  draw_cells(canvas, layout, r);
  draw_colour_bar(canvas, layout);
  canvas.write_png(path);
}

}  // namespace mixgrad
