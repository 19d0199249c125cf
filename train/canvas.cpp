// The picture: rasterising shapes and text, and the way into a PNG file.
#include "train/canvas.h"

#include <stb_easy_font.h>
#include <stb_image_write.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tensor/error.h"
#include "train/atomic_file.h"

namespace mixgrad {
namespace {

constexpr int64_t kMaxSide = 16384;
constexpr int64_t kCapitalHeight = 7;
constexpr int64_t kFontHeight = 9;            // capitals take 7 rows, descenders two more
constexpr size_t kQuadBytes = 4 * 16;         // stb_easy_font: 4 vertices of {float x, y, z; uint8 colour[4]}
constexpr size_t kMaxQuadsPerCharacter = 24;  // the busiest glyph has 11

constexpr std::string_view kOpenBox = "\u2423";

// A line of text as the font takes it, and where in it open boxes are to be.
struct Line {
  std::string text;
  std::vector<size_t> open_boxes;
};

// stb_easy_font indexes its tables by the character, unchecked: only printable ASCII may reach it.
Line printable_line(std::string_view text) {
  Line line;
  while (!text.empty()) {
    const bool open_box = text.starts_with(kOpenBox);
    const char c = text[0];
    if (open_box) line.open_boxes.push_back(line.text.size());
    line.text += open_box ? '_' : c < 0x20 || c > 0x7e ? '?' : c;
    text.remove_prefix(open_box ? kOpenBox.size() : 1);
  }
  return line;
}

// The rectangles that make up the glyphs of a line of text whose top left corner is the origin, at scale 1.
std::vector<Box> glyph_boxes(std::string_view text) {
  Line printable = printable_line(text);
  std::string& line = printable.text;
  std::vector<float> vertices(line.size() * kMaxQuadsPerCharacter * kQuadBytes / sizeof(float));
  const int64_t quads = stb_easy_font_print(0, 0, line.data(), nullptr, vertices.data(),
                                            static_cast<int>(vertices.size() * sizeof(float)));
  std::vector<Box> boxes;
  for (int64_t quad = 0; quad < quads; ++quad) {
    const float* first = &vertices[quad * 16];  // top left corner
    const float* third = first + 8;             // bottom right corner
    const auto left = static_cast<int64_t>(first[0]), top = static_cast<int64_t>(first[1]);
    boxes.push_back({left, top, static_cast<int64_t>(third[0]) - left, static_cast<int64_t>(third[1]) - top});
  }
  for (const size_t at : printable.open_boxes) {  // an underscore, 4 wide in row 7, with raised ends
    const int64_t left = text_width(line.substr(0, at), 1);
    boxes.push_back({left, 5, 1, 2});
    boxes.push_back({left + 3, 5, 1, 2});
  }
  return boxes;
}

uint8_t mix(uint8_t below, uint8_t above, double coverage) {
  return static_cast<uint8_t>(std::lround(below + (above - below) * coverage));
}

// How much of a pixel a shape covers, by the signed distance of the pixel's centre to the shape's edge
// (inside > 0).
double edge_coverage(double distance_inside) { return std::clamp(distance_inside + 0.5, 0.0, 1.0); }

}  // namespace

int64_t text_width(std::string_view text, int64_t scale) {
  std::string line = printable_line(text).text;
  return stb_easy_font_width(line.data()) * scale;
}

int64_t text_height(int64_t scale) { return kFontHeight * scale; }

int64_t capital_height(int64_t scale) { return kCapitalHeight * scale; }

Canvas::Canvas(int64_t width, int64_t height, Rgb background) : width_(width), height_(height) {
  check(width >= 1 && width <= kMaxSide && height >= 1 && height <= kMaxSide, "[canvas] a picture of ", width,
        " x ", height, " pixels; each side must be in [1, ", kMaxSide, "]");
  pixels_.assign(width * height, background);
}

void Canvas::set(int64_t x, int64_t y, Rgb colour) {
  if (x >= 0 && x < width_ && y >= 0 && y < height_) pixels_[y * width_ + x] = colour;
}

void Canvas::fill(const Box& box, Rgb colour) {
  for (int64_t y = std::max<int64_t>(box.top, 0); y < std::min(box.bottom(), height_); ++y)
    for (int64_t x = std::max<int64_t>(box.left, 0); x < std::min(box.right(), width_); ++x)
      set(x, y, colour);
}

void Canvas::blend(int64_t x, int64_t y, Rgb colour, double coverage) {
  Rgb& pixel = pixels_[y * width_ + x];
  pixel = {mix(pixel.red, colour.red, coverage), mix(pixel.green, colour.green, coverage),
           mix(pixel.blue, colour.blue, coverage)};
}

template <class Coverage>
void Canvas::blend_region(double left, double top, double right, double bottom, const Box& clip, Rgb colour,
                          Coverage coverage) {
  // Clamped while still real numbers: a far-off coordinate would not fit an integer.
  const auto column = [&](double x) { return static_cast<int64_t>(std::clamp<double>(x, 0, width_)); };
  const auto row = [&](double y) { return static_cast<int64_t>(std::clamp<double>(y, 0, height_)); };
  const int64_t x_begin = std::max(column(left), clip.left),
                x_end = std::min(column(right + 1), clip.right());
  const int64_t y_begin = std::max(row(top), clip.top), y_end = std::min(row(bottom + 1), clip.bottom());
  for (int64_t y = y_begin; y < y_end; ++y)
    for (int64_t x = x_begin; x < x_end; ++x) blend(x, y, colour, coverage(x + 0.5, y + 0.5));
}

void Canvas::line(double x0, double y0, double x1, double y1, double thickness, Rgb colour, const Box& clip) {
  const double dx = x1 - x0, dy = y1 - y0, length_squared = dx * dx + dy * dy;
  const double radius = thickness / 2, reach = radius + 1;
  const auto coverage = [&](double x, double y) {
    const double along = length_squared > 0 ? ((x - x0) * dx + (y - y0) * dy) / length_squared : 0;
    const double t =
        std::clamp(along, 0.0, 1.0);  // the nearest point of the segment is (x0, y0) + t (dx, dy)
    return edge_coverage(radius - std::hypot(x - x0 - t * dx, y - y0 - t * dy));
  };
  blend_region(std::min(x0, x1) - reach, std::min(y0, y1) - reach, std::max(x0, x1) + reach,
               std::max(y0, y1) + reach, clip, colour, coverage);
}

void Canvas::disc(double x, double y, double radius, Rgb colour, const Box& clip) {
  const double reach = radius + 1;
  blend_region(x - reach, y - reach, x + reach, y + reach, clip, colour,
               [&](double px, double py) { return edge_coverage(radius - std::hypot(px - x, py - y)); });
}

void Canvas::text(int64_t left, int64_t top, std::string_view text, Rgb colour, int64_t scale,
                  TextDirection direction) {
  const int64_t width = text_width(text, scale);
  for (const Box& glyph : glyph_boxes(text)) {
    const int64_t along = glyph.left * scale, down = glyph.top * scale;
    const int64_t length = glyph.width * scale, thickness = glyph.height * scale;
    if (direction == TextDirection::right)
      fill({left + along, top + down, length, thickness}, colour);
    else
      fill({left + down, top + width - along - length, thickness, length}, colour);
  }
}

void Canvas::write_png(const std::filesystem::path& path) const {
  static_assert(sizeof(Rgb) == 3, "rows of Rgb are rows of packed bytes");
  std::string png;
  const auto append = [](void* target, void* data, int size) {
    static_cast<std::string*>(target)->append(static_cast<const char*>(data), static_cast<size_t>(size));
  };
  const int encoded = stbi_write_png_to_func(append, &png, static_cast<int>(width_),
                                             static_cast<int>(height_), 3, pixels_.data(), 0);
  check(encoded != 0, "[canvas] can't encode ", path.string(), ": out of memory");
  write_file_atomically(path, png);
}

}  // namespace mixgrad
