// A small RGB picture to draw plots on: boxes, smooth lines, discs and text, written as PNG.
//
// Pixel (x, y) covers the square from (x, y) to (x + 1, y + 1); x grows to the right, y downwards. Lines and
// discs take real coordinates in that plane, boxes and text whole pixels. What falls outside the picture
// isn't drawn.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace mixgrad {

/// A colour, eight bits a channel (sRGB).
struct Rgb {
  uint8_t red = 0, green = 0, blue = 0;
  bool operator==(const Rgb&) const = default;
};

/// A rectangle of whole pixels; right() and bottom() are the first column and row beyond it.
struct Box {
  int64_t left = 0, top = 0, width = 0, height = 0;
  int64_t right() const { return left + width; }
  int64_t bottom() const { return top + height; }
};

/// Text runs to the right, or is turned by 90 degrees and runs upwards (titles of vertical axes, narrow
/// columns).
enum class TextDirection { right, up };

/// Width in pixels of one line of text at a whole-number scale, and the height, which is the same for every
/// line.
int64_t text_width(std::string_view text, int64_t scale);
int64_t text_height(int64_t scale);

/// Height of capitals and digits, at the top of that; the rest is room for descenders.
int64_t capital_height(int64_t scale);

class Canvas {
 public:
  /// width x height pixels, all of one colour. Throws Error unless both are in [1, 16384].
  Canvas(int64_t width, int64_t height, Rgb background);

  int64_t width() const { return width_; }
  int64_t height() const { return height_; }
  Box bounds() const { return {0, 0, width_, height_}; }

  /// The colour of a pixel inside the picture.
  Rgb at(int64_t x, int64_t y) const { return pixels_[y * width_ + x]; }

  void set(int64_t x, int64_t y, Rgb colour);
  void fill(const Box& box, Rgb colour);

  /// Anti-aliased segment from (x0, y0) to (x1, y1), thickness in pixels, drawn inside clip only.
  void line(double x0, double y0, double x1, double y1, double thickness, Rgb colour, const Box& clip);

  /// Anti-aliased filled disc, drawn inside clip only.
  void disc(double x, double y, double radius, Rgb colour, const Box& clip);

  /// One line of text in the bitmap font of stb_easy_font. Its box has the top left corner (left, top) and is
  /// text_width wide and text_height high, the other way round when it runs up. U+2423, the open box that
  /// stands for a space, is drawn; any other byte outside 0x20..0x7e shows as ?.
  void text(int64_t left, int64_t top, std::string_view text, Rgb colour, int64_t scale,
            TextDirection direction = TextDirection::right);

  /// Writes a PNG, all or nothing (atomic_file.h). Throws Error with path and the system's reason.
  void write_png(const std::filesystem::path& path) const;

 private:
  /// Mixes colour into a pixel; coverage 0 leaves it, 1 replaces it.
  void blend(int64_t x, int64_t y, Rgb colour, double coverage);
  /// Blends every pixel of the real rectangle that is inside clip, with coverage(x, y) taken at its centre.
  template <class Coverage>
  void blend_region(double left, double top, double right, double bottom, const Box& clip, Rgb colour,
                    Coverage coverage);

  int64_t width_, height_;
  std::vector<Rgb> pixels_;  // [height, width]
};

}  // namespace mixgrad
