// The pictures are read back: pixels must stand where the numbers say, in the colours that the numbers say.
#include "train/plots.h"

#include <doctest/doctest.h>
#include <stb_image.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <set>
#include <string>
#include <vector>

#include "tensor/error.h"
#include "tensor/random.h"
#include "tests/train/scratch_files.h"
#include "train/canvas.h"

namespace mixgrad {
namespace {

constexpr Rgb kWhite{255, 255, 255}, kBlack{0, 0, 0};

/// A PNG file, decoded.
struct Picture {
  int64_t width = 0, height = 0;
  std::vector<Rgb> pixels;
  Rgb at(int64_t x, int64_t y) const { return pixels.at(y * width + x); }
};

Picture read_picture(const std::filesystem::path& path) {
  int width = 0, height = 0, channels = 0;
  unsigned char* bytes = stbi_load(path.c_str(), &width, &height, &channels, 3);
  REQUIRE(bytes != nullptr);
  Picture picture{width, height, std::vector<Rgb>(width * height)};
  for (size_t i = 0; i < picture.pixels.size(); ++i)
    picture.pixels[i] = {bytes[3 * i], bytes[3 * i + 1], bytes[3 * i + 2]};
  stbi_image_free(bytes);
  return picture;
}

int64_t pixels_unlike(const Picture& picture, const Box& box, Rgb colour) {
  int64_t count = 0;
  for (int64_t y = box.top; y < box.bottom(); ++y)
    for (int64_t x = box.left; x < box.right(); ++x) count += picture.at(x, y) != colour;
  return count;
}

bool overlap(const Box& a, const Box& b) {
  return a.left < b.right() && b.left < a.right() && a.top < b.bottom() && b.top < a.bottom();
}

/// How much of the blue train curve a pixel shows, from 0 to 1; grid, ink and background are (nearly) grey:
/// 0.
double train_share(Rgb pixel) {
  constexpr double full = kTrainColour.blue - kTrainColour.red;
  return std::max(0.0, (pixel.blue - pixel.red - 10.0) / (full - 10.0));
}

struct Extent {
  double top = 1e9, bottom = -1, centre = 0, share = 0;
};

/// Where the train curve is in one column of pixels of the axes.
Extent train_extent(const Picture& picture, const Axes& axes, int64_t x) {
  Extent extent;
  for (int64_t y = axes.area.top; y < axes.area.bottom(); ++y) {
    const double share = train_share(picture.at(x, y));
    extent.share += share;
    extent.centre += share * (y + 0.5);
    if (share > 0.3)
      extent.top = std::min(extent.top, y + 0.5), extent.bottom = std::max(extent.bottom, y + 0.5);
  }
  extent.centre /= extent.share;
  return extent;
}

Responsibilities sample_responsibilities(int64_t tokens, int64_t components) {
  Responsibilities r{tokens, components, {}, {}, 3, 1};
  uint64_t state = 12345;
  for (int64_t token = 0; token < tokens; ++token) {
    std::vector<double> weights(components);
    double sum = 0;
    for (double& weight : weights) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += weight = std::exp(10 * static_cast<double>(state >> 40) / (1 << 24));
    }
    for (const double weight : weights) r.gamma.push_back(static_cast<float>(weight / sum));
    r.token_text.push_back(std::string(1, static_cast<char>('a' + token % 26)));
  }
  return r;
}

/// The responsibility whose colour is nearest to a pixel's.
double decoded(Rgb pixel) {
  double best_value = -1;
  int best_distance = 1 << 30;
  for (int i = 0; i <= 2000; ++i) {
    const double value = i / 2000.0;
    const Rgb colour = heat_colour(heat_position(value));
    const int red = colour.red - pixel.red, green = colour.green - pixel.green,
              blue = colour.blue - pixel.blue;
    const int distance = red * red + green * green + blue * blue;
    if (distance < best_distance) best_distance = distance, best_value = value;
  }
  return best_value;
}

/// CIE L* of an sRGB colour, from 0 to 100.
double lightness(Rgb colour) {
  const auto linear = [](uint8_t channel) {
    const double value = channel / 255.0;
    return value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
  };
  const double luminance =
      0.2126 * linear(colour.red) + 0.7152 * linear(colour.green) + 0.0722 * linear(colour.blue);
  return luminance > 0.008856 ? 116 * std::cbrt(luminance) - 16 : 903.3 * luminance;
}

/// Checks every cell of the picture of r. Largest error: about 0.004 when right, above 0.5 with a row or
/// column off.
void check_cells(const Picture& picture, const HeatMapLayout& layout, const Responsibilities& r) {
  std::map<std::tuple<int, int, int>, double> known;
  for (int64_t row = 0; row < std::ssize(layout.components); ++row)
    for (int64_t column = 0; column < layout.columns; ++column) {
      const Box cell = layout.cell(row, column);
      const Rgb pixel = picture.at(cell.left + cell.width / 2, cell.top + cell.height / 2);
      REQUIRE(pixels_unlike(picture, cell, pixel) == 0);
      const auto [entry, fresh] = known.try_emplace({pixel.red, pixel.green, pixel.blue});
      if (fresh) entry->second = decoded(pixel);
      const float gamma = r.gamma[column * r.components + layout.components[row]];
      REQUIRE(std::abs(entry->second - gamma) <= 1.0 / 64);
    }
}

}  // namespace

TEST_CASE("train/plots: a canvas draws lines of the thickness and at the place that was asked for") {
  Canvas canvas(40, 30, kWhite);
  canvas.line(5, 10.25, 35, 10.25, 2, kBlack, canvas.bounds());
  double ink = 0, moment = 0;
  for (int64_t y = 0; y < 30; ++y) {
    const double share = (255 - canvas.at(20, y).red) / 255.0;
    ink += share, moment += share * (y + 0.5);
  }
  CHECK(ink == doctest::Approx(2).epsilon(0.01));
  CHECK(moment / ink == doctest::Approx(10.25).epsilon(0.005));
  CHECK(canvas.at(2, 10) == kWhite);
  CHECK(canvas.at(37, 10) == kWhite);
  canvas.line(-1e9, 20, 1e9, 20, 2, kBlack, {10, 0, 5, 30});
  CHECK(canvas.at(12, 20) == kBlack);
  CHECK(canvas.at(9, 20) == kWhite);
  CHECK(canvas.at(15, 20) == kWhite);
}

TEST_CASE("train/plots: text that runs up is the text that runs right turned by 90 degrees") {
  const std::string words = "Loss (nats) 0.5 gj";
  const int64_t width = text_width(words, 2), height = text_height(2);
  Canvas across(width, height, kWhite), up(height, width, kWhite);
  across.text(0, 0, words, kBlack, 2);
  up.text(0, 0, words, kBlack, 2, TextDirection::up);
  int64_t ink = 0;
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      REQUIRE(across.at(x, y) == up.at(y, width - 1 - x));
      ink += across.at(x, y) == kBlack;
    }
  CHECK(ink > width * height / 10);
  Canvas framed(width + 20, height + 20, kWhite);  // nothing outside the box of the text
  framed.text(10, 10, words, kBlack, 2);
  int64_t framed_ink = 0;
  for (int64_t y = 0; y < framed.height(); ++y)
    for (int64_t x = 0; x < framed.width(); ++x) framed_ink += framed.at(x, y) == kBlack;
  CHECK(framed_ink == ink);
  framed.text(-1000, 5, "\xff\x01\n\x7f", kBlack, 1);  // neither these bytes nor the place may do harm
}

TEST_CASE("train/plots: ticks are the multiples of 1 or 2 or 5 times a power of ten") {
  CHECK(nice_ticks(0, 2000, 8) == std::vector<double>{0, 500, 1000, 1500, 2000});
  CHECK(nice_ticks(1.3, 12, 7) == std::vector<double>{2, 4, 6, 8, 10, 12});
  CHECK(nice_ticks(0, 2, 8, 1) == std::vector<double>{0, 1, 2});
  CHECK(nice_ticks(-1, 1, 4) == std::vector<double>{-1, -0.5, 0, 0.5, 1});
  CHECK_FALSE(std::signbit(nice_ticks(-0.0, 1, 4)[0]));
  const std::vector<double> huge = nice_ticks(0, 3e30, 6);
  REQUIRE(huge.size() == 7);
  for (size_t i = 0; i < huge.size(); ++i) CHECK(huge[i] == doctest::Approx(static_cast<double>(i) * 5e29));
}

TEST_CASE("train/plots: the train curve lies where its points are") {
  const ScratchFolder folder;
  std::vector<LossPoint> train;
  for (int64_t step = 0; step <= 200; step += 2)
    train.push_back({step, 3 + std::sin(static_cast<double>(step) / 20)});
  const LossLayout layout = loss_layout(train, {});
  plot_loss(folder / "loss.png", train, {}, "a sine");
  const Picture picture = read_picture(folder / "loss.png");
  CHECK(picture.width == 900);
  CHECK(picture.height == 540);
  const Axes& axes = layout.axes;
  double worst = 0;
  for (int64_t x = axes.area.left + 2; x < axes.area.right() - 2; ++x) {
    const Extent extent = train_extent(picture, axes, x);
    REQUIRE(extent.share > 0.5);
    const double step = axes.x_min + (x + 0.5 - axes.area.left) / axes.area.width * (axes.x_max - axes.x_min);
    worst = std::max(worst, std::abs(extent.centre - axes.to_y(3 + std::sin(step / 20))));
  }
  CHECK(worst < 1);  // 0.32 when right; 2.3 when drawn two pixels too low
}

TEST_CASE("train/plots: validation losses are marked at their points") {
  const ScratchFolder folder;
  const std::vector<LossPoint> validation = {{0, 5.5}, {100, 3.25}, {200, 2.5}, {300, 2.75}};
  const LossLayout layout = loss_layout({}, validation);
  plot_loss(folder / "loss.png", {}, validation, "four points");
  const Picture picture = read_picture(folder / "loss.png");
  for (const LossPoint& point : validation) {
    const auto x = static_cast<int64_t>(layout.axes.to_x(static_cast<double>(point.step)));
    const auto y = static_cast<int64_t>(layout.axes.to_y(point.loss));
    CHECK(picture.at(std::min(x, layout.axes.area.right() - 1), y) == kValidationColour);
    CHECK(picture.at(x - 1, y - 2) == kValidationColour);  // a disc: wider than the line
    CHECK(picture.at(x - 2, y + 7) != kValidationColour);
  }
}

TEST_CASE("train/plots: tick labels stand beside their grid lines and do not overlap") {
  const ScratchFolder folder;
  const std::vector<LossPoint> train = {{0, 11.1}, {30000, 2.2}};
  const LossLayout layout = loss_layout(train, {});
  plot_loss(folder / "loss.png", train, {}, "ticks");
  const Picture picture = read_picture(folder / "loss.png");
  const Box& area = layout.axes.area;
  REQUIRE(layout.x_ticks.size() >= 4);
  REQUIRE(layout.y_ticks.size() >= 4);
  CHECK(layout.x_ticks[1].label == "5k");
  CHECK(layout.y_ticks[0].label == "2");
  for (const Tick& tick : layout.x_ticks) {
    const auto x = static_cast<int64_t>(layout.axes.to_x(tick.value));
    CHECK(std::abs(tick.label_box.left + tick.label_box.width / 2 - x) <= 1);
    CHECK(tick.label_box.top >= area.bottom());
    CHECK(pixels_unlike(picture, tick.label_box, kWhite) > 20);
    if (x > area.left && x < area.right()) CHECK(picture.at(x, area.top + 1) == picture.at(x, area.top + 2));
    if (x > area.left) CHECK(picture.at(x, area.top + 1) != kWhite);
    CHECK(picture.at(x + 3, area.top + 1) == kWhite);
  }
  for (const Tick& tick : layout.y_ticks) {
    const auto y = static_cast<int64_t>(layout.axes.to_y(tick.value));
    CHECK(std::abs(tick.label_box.top + text_height(2) / 2 - y) <= 3);
    CHECK(tick.label_box.right() <= area.left);
    CHECK(pixels_unlike(picture, tick.label_box, kWhite) > 20);
    CHECK(picture.at(area.right() - 50, y) != kWhite);
  }
  for (size_t i = 1; i < layout.x_ticks.size(); ++i)
    CHECK_FALSE(overlap(layout.x_ticks[i - 1].label_box, layout.x_ticks[i].label_box));
  for (size_t i = 1; i < layout.y_ticks.size(); ++i)
    CHECK_FALSE(overlap(layout.y_ticks[i - 1].label_box, layout.y_ticks[i].label_box));
}

TEST_CASE("train/plots: points that are not finite break the curve and are marked") {
  const ScratchFolder folder;
  constexpr double inf = std::numeric_limits<double>::infinity(),
                   nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<LossPoint> clean = {{10, 3}, {20, 2}, {40, 1}, {60, 1}},
                               dirty = {{10, 3},   {20, 2},     {30, nan}, {40, 1},
                                        {50, inf}, {55, 1e200}, {60, 1}};
  plot_loss(folder / "clean.png", clean, {}, "run");
  plot_loss(folder / "dirty.png", dirty, {}, "run");
  const Picture whole = read_picture(folder / "clean.png"), broken = read_picture(folder / "dirty.png");
  const LossLayout layout = loss_layout(dirty, {});
  const Axes& axes = layout.axes;
  CHECK(axes.y_max == loss_layout(clean, {}).axes.y_max);  // they choose nothing
  CHECK(layout.points_not_finite == 3);
  const auto column = [&](double step) { return static_cast<int64_t>(axes.to_x(step)); };
  CHECK(train_extent(whole, axes, column(27)).share > 0.5);
  CHECK(train_extent(broken, axes, column(15)).share > 0.5);
  CHECK(train_extent(broken, axes, column(27)).share < 0.1);
  CHECK(train_extent(broken, axes, column(52)).share < 0.1);
  for (const double step : {30.0, 50.0, 55.0}) {
    CHECK(broken.at(column(step), axes.area.top + 2) == kNotFiniteColour);
    CHECK(whole.at(column(step), axes.area.top + 2) != kNotFiniteColour);
  }
  CHECK(broken.at(column(60) - 1, static_cast<int64_t>(axes.to_y(1))) == kTrainColour);  // alone: a disc
}

TEST_CASE("train/plots: what a noisy curve shows is its mean") {
  const ScratchFolder folder;
  std::vector<LossPoint> train;
  Generator generator(3);
  for (int64_t step = 0; step < 20000; ++step)
    train.push_back({step, 4 - static_cast<double>(step) / 10000 + generator.uniform()});
  plot_loss(folder / "loss.png", train, {{20000, 2.6}}, "noise");
  const LossLayout layout = loss_layout(train, {{20000, 2.6}});
  const Picture picture = read_picture(folder / "loss.png");
  for (const double step : {3000.0, 10000.0, 17000.0}) {
    const auto x = static_cast<int64_t>(layout.axes.to_x(step));
    double sum = 0, count = 0;
    for (int64_t y = layout.axes.area.top; y < layout.axes.area.bottom(); ++y) {
      if (picture.at(x, y) == kSmoothColour) sum += y + 0.5, ++count;
    }
    REQUIRE(count > 0);
    CHECK(count < 6);
    // A mean of 400 numbers errs by 0.014, 2 pixels; a curve of single batches by 0.3, 40 pixels.
    CHECK(std::abs(sum / count - layout.axes.to_y(4.5 - step / 10000)) < 6);
  }
  CHECK(layout.train_tail == 400);
  CHECK(layout.train_mean == doctest::Approx(2.52).epsilon(0.02));
  CHECK(loss_layout({{1, 5}, {2, 4}}, {}).train_mean == doctest::Approx(4.5));
  CHECK(loss_layout({{1, 5}, {2, 4}}, {}).train_tail == 2);
}

TEST_CASE("train/plots: a smoothed curve ends in a mean, not in the last batch") {
  const ScratchFolder folder;
  std::vector<LossPoint> train;
  for (int64_t step = 0; step < 20000; ++step) train.push_back({step, step % 2 == 0 ? 3.0 : 2.0});
  train.back().loss = 1;
  plot_loss(folder / "loss.png", train, {}, "noise");
  const LossLayout layout = loss_layout(train, {});
  const Picture picture = read_picture(folder / "loss.png");
  // The mean at the end is 2.49; the last batch lies 100 pixels below.
  const auto lowest = static_cast<int64_t>(layout.axes.to_y(2.4));
  for (int64_t y = lowest; y < layout.axes.area.bottom(); ++y) {
    for (int64_t x = layout.axes.area.left; x < layout.axes.area.right(); ++x) {
      CHECK(picture.at(x, y) != kSmoothColour);
    }
  }
}

TEST_CASE("train/plots: a picture takes the place of a regular file only") {
  const ScratchFolder folder;
  std::filesystem::create_symlink("/dev/null", folder / "link.png");
  REQUIRE(::mkfifo((folder / "pipe.png").c_str(), 0600) == 0);
  std::filesystem::create_directory(folder / "folder.png");
  for (const char* name : {"link.png", "pipe.png", "folder.png"}) {
    CAPTURE(name);
    const auto kind = std::filesystem::symlink_status(folder / name).type();
    CHECK(contains(error_of([&] {
                     plot_loss(folder / name, {{1, 2}}, {}, "run");
                   }),
                   "it is no regular file"));
    CHECK(std::filesystem::symlink_status(folder / name).type() == kind);
  }
  plot_loss(folder / "new.png", {{1, 2}}, {}, "run");
  plot_loss(folder / "new.png", {{1, 3}}, {}, "run");
  CHECK(folder.files() == 4);
}

TEST_CASE("train/plots: no point and one point and flat or huge curves give a picture") {
  const ScratchFolder folder;
  plot_loss(folder / "empty.png", {}, {}, "");
  const Picture empty = read_picture(folder / "empty.png");
  const Box& area = loss_layout({}, {}).axes.area;
  CHECK(pixels_unlike(empty, {area.left + area.width / 2 - 70, area.top + area.height / 2, 140, 18}, kWhite) >
        100);

  plot_loss(folder / "one.png", {{7, 4.5}}, {}, "one");
  const LossLayout one = loss_layout({{7, 4.5}}, {});
  const auto x = static_cast<int64_t>(one.axes.to_x(7)), y = static_cast<int64_t>(one.axes.to_y(4.5));
  CHECK(read_picture(folder / "one.png").at(x, y) == kTrainColour);

  for (const double scale : {0.0, 1e-30, 1.0, 1e30, 1e100}) {
    const std::vector<LossPoint> train = {{1, scale}, {2, scale}}, validation = {{1, -scale}, {2, scale / 3}};
    CHECK_NOTHROW(plot_loss(folder / "flat.png", train, {}, "flat"));
    CHECK_NOTHROW(plot_loss(folder / "huge.png", train, validation, "huge"));
    const LossLayout layout = loss_layout(train, validation);
    CHECK(layout.axes.y_min < layout.axes.y_max);
    CHECK(layout.y_ticks.size() >= 2);
    CHECK(layout.y_ticks.size() <= 9);
    CHECK(layout.axes.area.width > 400);
  }
}

TEST_CASE("train/plots: a few very high losses do not squash the rest") {
  std::vector<LossPoint> train;
  for (int64_t step = 0; step < 1000; ++step) train.push_back({step, 3 - static_cast<double>(step) / 1000});
  CHECK(loss_layout(train, {}).points_above == 0);
  train[0].loss = 1e9;
  train[1].loss = 2e6;
  const LossLayout layout = loss_layout(train, {});
  CHECK(layout.points_above == 2);
  CHECK(layout.highest == 1e9);
  CHECK(layout.axes.y_max > 3);
  CHECK(layout.axes.y_max < 4);
  const ScratchFolder folder;
  plot_loss(folder / "loss.png", train, {}, "spike");
  const Picture picture = read_picture(folder / "loss.png");
  const Box& area = layout.axes.area;
  CHECK(pixels_unlike(picture, {area.right() - 300, area.top + 8, 290, 18}, kWhite) > 300);  // says so
  const auto middle = static_cast<int64_t>(layout.axes.to_x(500));
  CHECK(std::abs(train_extent(picture, layout.axes, middle).centre - layout.axes.to_y(2.5)) < 1.5);

  std::vector<LossPoint> few;
  for (int64_t step = 0; step < 12; ++step)
    few.push_back({step, 3 + 7.8 * std::exp(-static_cast<double>(step) / 2)});
  CHECK(loss_layout(few, {}).points_above == 0);
  few[0].loss = 1000;
  CHECK(loss_layout(few, {}).points_above == 1);

  std::vector<LossPoint> usual;  // from log(50257) down: nothing of it may be cut off
  for (int64_t step = 0; step < 1000; ++step)
    usual.push_back({step, 3 + 7.8 * std::exp(-static_cast<double>(step) / 50)});
  CHECK(loss_layout(usual, {}).points_above == 0);
}

TEST_CASE("train/plots: a hundred thousand points show the highest and lowest of every column") {
  std::vector<LossPoint> train;
  uint64_t state = 1;
  for (int64_t step = 0; step < 100000; ++step) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    train.push_back({step, 2 + static_cast<double>(state >> 40) / (1 << 24)});
  }
  const LossLayout layout = loss_layout(train, {});
  const Axes& axes = layout.axes;
  std::map<int64_t, std::pair<double, double>> range;  // pixel column: lowest and highest loss
  for (const LossPoint& point : train) {
    const auto x = static_cast<int64_t>(axes.to_x(static_cast<double>(point.step)));
    auto& [low, high] = range.try_emplace(x, point.loss, point.loss).first->second;
    low = std::min(low, point.loss), high = std::max(high, point.loss);
  }
  const ScratchFolder folder;
  plot_loss(folder / "loss.png", train, {}, "noise");
  const Picture picture = read_picture(folder / "loss.png");
  for (int64_t x = axes.area.left + 3; x < axes.area.right() - 3; ++x) {
    double low = 1e9,
           high = -1e9;  // a line is wider than a pixel: its neighbours' ends may show in this column
    for (int64_t column = x - 1; column <= x + 1; ++column)
      low = std::min(low, range.at(column).first), high = std::max(high, range.at(column).second);
    const Extent extent = train_extent(picture, axes, x);
    REQUIRE(extent.top <= axes.to_y(range.at(x).second) + 8);  // drawn up to its own highest point
    REQUIRE(extent.top >= axes.to_y(high) - 2);                // and not beyond
    REQUIRE(extent.bottom >= axes.to_y(range.at(x).first) - 8);
    REQUIRE(extent.bottom <= axes.to_y(low) + 2);
  }
}

TEST_CASE("train/plots: the colour scale rises evenly in lightness") {
  for (int i = 1; i <= 64; ++i)  // in 64 steps: of 256, some are smaller than the rounding to 8 bits
    REQUIRE(lightness(heat_colour(i / 64.0)) > lightness(heat_colour((i - 1) / 64.0)));
  CHECK(lightness(heat_colour(0)) < 10);
  CHECK(lightness(heat_colour(1)) > 90);
  // Over stretches of 1/8 of the scale the rise is 9.5 to 12.3 here; a rainbow scale has falling stretches.
  for (int part = 0; part < 8; ++part) {
    const double rise = lightness(heat_colour((part + 1) / 8.0)) - lightness(heat_colour(part / 8.0));
    CHECK(rise > 9);
    CHECK(rise < 13);
  }
}

TEST_CASE("train/plots: the colour of every cell decodes to its responsibility") {
  const ScratchFolder folder;
  for (const auto& [tokens, components] :
       {std::pair<int64_t, int64_t>{80, 64}, {1, 1}, {5, 2}, {96, 128}, {200, 300}}) {
    INFO(tokens, " tokens, ", components, " components");
    const Responsibilities r = sample_responsibilities(tokens, components);
    const HeatMapLayout layout = heat_map_layout(r);
    plot_responsibilities(folder / "map.png", r);
    const Picture picture = read_picture(folder / "map.png");
    CHECK(picture.width == layout.width);
    CHECK(picture.height == layout.height);
    CHECK(picture.width <= 1600);
    CHECK(picture.height <= 1200);
    CHECK(layout.columns == std::min<int64_t>(tokens, 96));
    CHECK(std::ssize(layout.components) == std::min<int64_t>(components, 128));
    CHECK(std::set(layout.components.begin(), layout.components.end()).size() == layout.components.size());
    check_cells(picture, layout, r);
    for (int64_t column = 0; column < layout.columns; ++column) {  // the token above its column
      const Box cell = layout.cell(0, column);
      CHECK(pixels_unlike(picture, {cell.left, cell.top - 24, cell.width, 22}, kWhite) > 2);
    }
    for (const Tick& label : layout.row_labels) CHECK(pixels_unlike(picture, label.label_box, kWhite) > 2);
  }
}

TEST_CASE("train/plots: the numbers beside the colour bar stand at their colours") {
  const ScratchFolder folder;
  const Responsibilities r = sample_responsibilities(64, 64);
  const HeatMapLayout layout = heat_map_layout(r);
  plot_responsibilities(folder / "map.png", r);
  const Picture picture = read_picture(folder / "map.png");
  const Box& bar = layout.colour_bar;
  CHECK(layout.bar_ticks.front().value == 0);
  CHECK(layout.bar_ticks.back().value == 1);
  for (const Tick& tick : layout.bar_ticks) {
    const double y = bar.bottom() - heat_position(tick.value) * bar.height;
    const auto row = std::clamp(static_cast<int64_t>(y), bar.top, bar.bottom() - 1);
    CHECK(std::abs(decoded(picture.at(bar.left + 3, row)) - tick.value) <= 1.0 / 64);
    CHECK(std::abs(tick.label_box.top + 7 - y) <= 1);
    CHECK(pixels_unlike(picture, tick.label_box, kWhite) > 5);
  }
}

TEST_CASE("train/plots: the words of a token name its characters and no other token's") {
  CHECK(token_label_text("a") == "a");
  CHECK(token_label_text("_") == "_");
  CHECK(token_label_text("$") == "$");
  CHECK(token_label_text(" ") == "\u2423");
  CHECK(token_label_text("\n") == "\\n");
  CHECK(token_label_text("\\") == "\\\\");
  CHECK(token_label_text("\u0434") == "U+0434");
  CHECK(token_label_text("\U0001F600") == "U+1F600");
  CHECK(token_label_text("\xd0") == "\\xd0");
  CHECK(token_label_text(std::string(1, '\0')) == "U+0000");
  CHECK(token_label_text("\x7f") == "U+007F");
  CHECK(token_label_text(" the") == "\u2423the");
  CHECK(text_width("U+1F600", 2) <= 96);  // the room of a column's words: none is cut off
}

TEST_CASE("train/plots: an open box is neither an underscore nor unknown") {
  const auto drawn = [](const char* text) {
    Canvas canvas(16, 16, kWhite);
    canvas.text(2, 2, text, kBlack, 1);
    std::string pixels;
    for (int64_t i = 0; i < 256; ++i) pixels += canvas.at(i % 16, i / 16) == kBlack ? '#' : '.';
    return pixels;
  };
  const std::string box = drawn("\u2423"), underscore = drawn("_");
  CHECK(std::ranges::count(box, '#') == std::ranges::count(underscore, '#') + 4);
  for (size_t i = 0; i < box.size(); ++i) CHECK((underscore[i] != '#' || box[i] == '#'));
  CHECK(box != drawn("?"));
  CHECK(text_width("\u2423", 2) == text_width("_", 2));
}

TEST_CASE("train/plots: usage and the order of rows by hand") {
  // Component 1 wins tokens 0 and 2 (strongest at 2), component 3 wins token 1, components 0 and 2 win none.
  const Responsibilities r{
      3, 4, {0.1f, 0.6f, 0.2f, 0.1f, 0.1f, 0.1f, 0.2f, 0.6f, 0.05f, 0.7f, 0.2f, 0.05f}, {"a", "\n\xff\\", ""},
      0, 0};
  const ComponentUsage usage = component_usage(r);
  CHECK(usage.wins == std::vector<int64_t>{0, 2, 0, 1});
  CHECK(usage.used == 2);
  CHECK(usage.mean[1] == doctest::Approx(1.4 / 3));
  // -(0.25/3 ln(0.25/3) + 1.4/3 ln(1.4/3) + 0.2 ln 0.2 + 0.25 ln 0.25) / ln 4
  CHECK(usage.entropy == doctest::Approx(0.888138).epsilon(1e-5));
  CHECK(heat_map_layout(r).components == std::vector<int64_t>{3, 1, 2, 0});
  const ScratchFolder folder;
  CHECK_NOTHROW(plot_responsibilities(folder / "map.png", r));

  const Responsibilities even{2, 2, {0.5f, 0.5f, 0.5f, 0.5f}, {"a", "b"}, 0, 0};
  CHECK(component_usage(even).entropy == doctest::Approx(1));
  CHECK(component_usage(even).used == 1);  // a tie goes to the first
  const Responsibilities collapsed{2, 2, {0, 1, 0, 1}, {"a", "b"}, 0, 0};
  CHECK(component_usage(collapsed).entropy == 0);
  CHECK(component_usage(Responsibilities{1, 1, {1}, {"a"}, 0, 0}).entropy == 1);
}

TEST_CASE("train/plots: responsibilities that are not are refused") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const auto message = [](const Responsibilities& r) { return error_of([&] { component_usage(r); }); };
  CHECK(contains(message({2, 2, {0.5f, 0.5f, nan, 0.5f}, {"a", "b"}, 0, 0}), "token 1, component 0: nan"));
  CHECK(contains(message({1, 2, {1.5f, -0.5f}, {"a"}, 0, 0}), "token 0, component 0: 1.5"));
  CHECK(contains(message({2, 2, {1, 0}, {"a", "b"}, 0, 0}),
                 "2 values and 2 texts for 2 tokens and 2 components"));
  CHECK(contains(message({1, 2, {1, 0}, {}, 0, 0}), "2 values and 0 texts"));
  CHECK(contains(message({0, 2, {}, {}, 0, 0}), "0 tokens"));
}

TEST_CASE("train/plots: a picture that can't be written leaves the old one and no half file") {
  const ScratchFolder folder;
  plot_loss(folder / "loss.png", {{1, 2}}, {}, "old");
  const std::string old = file_bytes(folder / "loss.png");
  std::string message;
  {
    const DiskLimit limit(1000);
    message = error_of([&] { plot_loss(folder / "loss.png", {{1, 3}, {2, 1}}, {}, "new"); });
  }
  CHECK(message == "[file] can't write " + (folder / "loss.png").string() + ": File too large");
  CHECK(file_bytes(folder / "loss.png") == old);
  CHECK(folder.files() == 1);
  CHECK(contains(error_of([&] { plot_loss(folder / "no/loss.png", {}, {}, ""); }),
                 "No such file or directory"));
  CHECK(contains(error_of([&] { plot_loss(folder.path(), {}, {}, ""); }), "it is no regular file"));
  CHECK_FALSE(std::filesystem::exists(folder.path().string() + ".tmp"));
}

}  // namespace mixgrad
