// The two pictures of a training run: loss.png and responsibilities.png.
//
// Each picture has a layout, the plain numbers that say which pixel shows which value. Drawing follows it,
// and tests read the picture back through it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "train/canvas.h"

namespace mixgrad {

/// A mark on an axis: its value, its words, and the pixels of those words.
struct Tick {
  double value = 0;
  std::string label;
  Box label_box;
};

/// A linear map from data to pixels of area; y grows upwards in data, downwards in pixels.
struct Axes {
  Box area;
  double x_min = 0, x_max = 1, y_min = 0, y_max = 1;
  double to_x(double x) const;
  double to_y(double y) const;
};

/// The multiples of the smallest of 1, 2, 5 times a power of ten (and no smaller than smallest_step) that
/// puts at most about max_ticks of them into [low, high].
std::vector<double> nice_ticks(double low, double high, int64_t max_ticks, double smallest_step = 0);

/// A loss, in nats per token, after a number of optimiser steps (at most 2^50, so that a double counts them).
struct LossPoint {
  int64_t step = 0;
  double loss = 0;
};

/// What loss.png shows where.
struct LossLayout {
  Axes axes;
  std::vector<Tick> x_ticks, y_ticks;
  int64_t points_above = 0;  // higher than the top of the axes, so not to be seen
  double highest = 0;        // the highest loss of all
  int64_t points_not_finite = 0;
  int64_t train_tail = 0;  // how many of the last training losses the legend gives the mean of,
  double train_mean = 0;   // and that mean
};

/// Chooses the axes, by the points that are finite (and not beyond 1e100). The loss axis ends at the
/// highest loss, unless a few very high ones would squash the rest: when all but the highest 2 % of the
/// points (at least one, of ten or more) would fill less than a fifth of the axis, it ends a quarter above
/// these, and the picture says how many points lie higher, and how high.
LossLayout loss_layout(const std::vector<LossPoint>& train, const std::vector<LossPoint>& validation);

/// Colours of the curves, and of the marks of losses that are not finite.
inline constexpr Rgb kTrainColour{150, 190, 232}, kSmoothColour{24, 88, 168}, kValidationColour{196, 74, 22};
inline constexpr Rgb kNotFiniteColour{214, 24, 110};

/// Draws loss.png, 900 x 540: the curves over the steps (points in order of their steps), that of training
/// also smoothed where it has 100 points or more, each point then the mean of 2 % of them. The legend sets
/// the mean of the last training losses beside the last validation. A loss that is not finite breaks its
/// curve and is marked at the top. Validation points are marked with discs, unless there are so many that
/// these would touch. Throws Error when the file can't be written.
void plot_loss(const std::filesystem::path& path, const std::vector<LossPoint>& train,
               const std::vector<LossPoint>& validation, const std::string& title);

/// The responsibilities of one mixture, at one layer and head, over an excerpt of text.
struct Responsibilities {
  int64_t tokens = 0, components = 0;
  std::vector<float> gamma;             // [tokens, components], rows sum to 1
  std::vector<std::string> token_text;  // [tokens], raw bytes
  int64_t layer = 0, head = 0;
};

/// How a mixture uses its components over an excerpt.
struct ComponentUsage {
  std::vector<double> mean;  // [components], responsibility averaged over tokens
  std::vector<int64_t>
      wins;            // [components], tokens of which the component has the largest share (ties: the first)
  int64_t used = 0;    // components with a win
  double entropy = 0;  // of mean, divided by log(components): 1 is even use; 1 also for a single component
};

/// Throws Error unless the sizes agree, are at least 1, and every responsibility is a number in [0, 1] (to
/// 1e-3).
ComponentUsage component_usage(const Responsibilities& responsibilities);

/// The words of a token's column: its characters, the open box U+2423 for a space, \n for a line end, U+0434
/// for a character that is not ASCII, \xd0 for a byte that is no character.
std::string token_label_text(const std::string& token);

/// What responsibilities.png shows where: a cell for every shown token (column) and component (row).
struct HeatMapLayout {
  int64_t width = 0, height = 0;  // of the picture: at most 1600 x 1200
  Box map;                        // all cells
  int64_t cell_width = 0, cell_height = 0;
  int64_t columns = 0;              // tokens shown: the first 96
  std::vector<int64_t> components;  // component of each row, from the top
  std::vector<Tick> row_labels;     // value: row
  Box colour_bar;                   // 0 at its bottom, 1 at its top, in the scale of heat_position
  std::vector<Tick> bar_ticks;      // value: responsibility
  Box cell(int64_t row, int64_t column) const;
};

/// Chooses rows and places. At most 128 rows, the most used components. First those that win a token, in the
/// order of the token where they are strongest; then those that win none, by falling mean usage.
HeatMapLayout heat_map_layout(const Responsibilities& responsibilities);

/// Where on the colour scale, from 0 to 1, a responsibility in [0, 1] stands: its square root, since most are
/// small.
double heat_position(double responsibility);

/// The colour at a position in [0, 1] of the scale: dark to light, lightness rising evenly.
Rgb heat_colour(double position);

/// Draws responsibilities.png. Throws Error as component_usage does and when the file can't be written.
void plot_responsibilities(const std::filesystem::path& path, const Responsibilities& responsibilities);

}  // namespace mixgrad
