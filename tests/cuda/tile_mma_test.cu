// Products of tiles on tensor cores against plain sums.
#include "cuda/kernels/tile_mma.cuh"

#include <bit>

#include "tests/cuda/compare.h"

namespace mixgrad {
namespace {

constexpr int side = tile_side;
constexpr int stride = tile_stride(side);

/// How an operand lies in memory: as in the product, or transposed.
enum class Stored { straight, transposed };

/// c = a b + c + rounded(c) b, all [16, 16], by one warp. With `a_read` and `b_read` the operands are read in
/// another way than they are stored.
template <Stored a_read, Stored b_read>
__global__ void tile_product(const float* a, const float* b, float* c) {
  __shared__ SharedArray<float4, side * stride * 2 / 16 * 2> tiles;
  auto* a_tile = reinterpret_cast<Bfloat16*>(tiles.data());
  Bfloat16* b_tile = a_tile + side * stride;
  for (int i = threadIdx.x; i < side * side; i += 32) {
    a_tile[i / side * stride + i % side] = __float2bfloat16(a[i]);
    b_tile[i / side * stride + i % side] = __float2bfloat16(b[i]);
  }
  __syncwarp();
  const LeftTile left =
      a_read == Stored::straight ? left_tile(a_tile, stride) : transposed_left_tile(a_tile, stride);
  const RightTile right =
      b_read == Stored::straight ? right_tile(b_tile, stride) : transposed_right_tile(b_tile, stride);
  SumTile sums;
  for (int i = 0; i < 8; ++i) sums.values[i] = c[sums.row(i) * side + sums.column(i)];
  const LeftTile before = sums.rounded();
  sums.add_product(left, right);
  sums.add_product(before, right);
  for (int i = 0; i < 8; ++i) c[sums.row(i) * side + sums.column(i)] = sums.values[i];
}

float in_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000);
}

/// The same in plain sums.
std::vector<double> plain_product(Stored a_stored, Stored b_stored, const std::vector<float>& a,
                                  const std::vector<float>& b, const std::vector<float>& c) {
  const auto at = [](Stored stored, const std::vector<float>& x, int row, int column) {
    return in_bfloat16(stored == Stored::straight ? x[row * side + column] : x[column * side + row]);
  };
  std::vector<double> sums(c.begin(), c.end());
  for (int i = 0; i < side * side; ++i) {
    for (int k = 0; k < side; ++k) {
      sums[i] += (at(a_stored, a, i / side, k) + at(Stored::straight, c, i / side, k)) *
                 at(b_stored, b, k, i % side);
    }
  }
  return sums;
}

template <Stored a_read, Stored b_read>
double product_error(Stored a_stored, Stored b_stored) {
  const std::vector<float> a = waves<float>(side * side);
  const std::vector<float> b = waves<float>(side * side, 1);
  const std::vector<float> c = waves<float>(side * side, 2);
  Operands<Cuda> operands;
  const float* on_device[] = {operands.in(a), operands.in(b)};
  launch<tile_product<a_read, b_read>>(Cuda{}, {1, 32}, on_device[0], on_device[1], operands.in_out(c));
  return difference(operands.results(), {plain_product(a_stored, b_stored, a, b, c)});
}

}  // namespace

TEST_CASE("cuda/tile_mma: products of tiles that are stored straight or transposed") {
  if (cuda::device_count() == 0) {
    MESSAGE("not run: ", cuda::why_unavailable());
    return;
  }
  using enum Stored;
  // Operands are exact; sums of 32 products in float err by 2e-7. Operands that aren't rounded: 3e-3.
  constexpr double tolerance = 2e-6;
  CHECK(product_error<straight, straight>(straight, straight) <= tolerance);
  CHECK(product_error<transposed, straight>(transposed, straight) <= tolerance);
  CHECK(product_error<straight, transposed>(straight, transposed) <= tolerance);
  CHECK(product_error<transposed, transposed>(transposed, transposed) <= tolerance);
  // An operand that is read in the wrong layout is noticed.
  CHECK(product_error<transposed, straight>(straight, straight) > 0.1);
  CHECK(product_error<straight, transposed>(straight, straight) > 0.1);
}

}  // namespace mixgrad
