// The innermost kernels of bfloat16, a block at a time: emulated on every machine, and those of this CPU.
#include "tensor/cpu/bf16_kernels.h"

#include <limits>
#include <random>

#include "tests/tensor/emulated_bf16.h"
#include "tests/tensor/fixtures.h"

using namespace mixgrad;

namespace {

constexpr int64_t rows = Bf16Kernels::rows, columns = Bf16Kernels::columns;

/// Two bfloat16 numbers, cut off.
uint32_t pair_of(float first, float second) {
  return std::bit_cast<uint32_t>(first) >> 16 | (std::bit_cast<uint32_t>(second) & 0xffff0000u);
}

/// A block's operands. What lies between A's rows is NaN.
struct Block {
  int64_t pairs, a_line;
  std::vector<uint32_t> a, b;
  std::vector<float> sums;

  explicit Block(int64_t pairs, int64_t gap = 0)
      : pairs(pairs),
        a_line(pairs + gap),
        a((rows - 1) * a_line + pairs, 0x7fc07fc0u),
        b(pairs * columns),
        sums(rows * columns, std::numeric_limits<float>::quiet_NaN()) {}

  uint32_t& a_at(int64_t i, int64_t p) { return a[i * a_line + p]; }
  uint32_t& b_at(int64_t p, int64_t j) { return b[p * columns + j]; }

  template <class Value>
  void fill(const Value& value) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t p = 0; p < pairs; ++p) a_at(i, p) = value();
    }
    for (uint32_t& pair : b) pair = value();
  }
  void multiply(const Bf16Kernels& kernels) {
    kernels.multiply(pairs, a.data(), a_line, b.data(), sums.data());
  }
  /// Largest error, relative to the sizes of what is added up.
  double error() {
    double worst = 0;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        double sum = 0, size = 0;
        for (int64_t p = 0; p < pairs; ++p) {
          const uint32_t x = a_at(i, p), y = b_at(p, j);
          for (const double term : {double{emulated::first_of(x)} * emulated::first_of(y),
                                    double{emulated::second_of(x)} * emulated::second_of(y)}) {
            sum += term;
            size += std::abs(term);
          }
        }
        worst = worse(worst, std::abs(sums[i * columns + j] - sum) / (1 + size));
      }
    }
    return worst;
  }
};

/// The one sum of a block whose other operands are 0.
float sum_of(const Bf16Kernels& kernels, const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  Block block(16);
  block.fill([] { return 0u; });
  for (size_t p = 0; p < a.size(); ++p) {
    block.a_at(0, static_cast<int64_t>(p)) = a[p];
    block.b_at(static_cast<int64_t>(p), 0) = b[p];
  }
  kernels.begin();
  block.multiply(kernels);
  kernels.end();
  return block.sums[0];
}

}  // namespace

TEST_CASE("tensor/bf16_kernels: a block is the sum of the products of pairs") {
  for (const Bf16Kernels* kernels :
       {&emulated::amx_kernels, &emulated::avx512_kernels, amx_kernels(), avx512_bf16_kernels()}) {
    if (kernels == nullptr) continue;
    CAPTURE(std::string(kernels->name));
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (const int64_t pairs : {0, 16, 48, 256}) {
      CAPTURE(pairs);
      kernels->begin();
      for (const int64_t gap : {0, 5}) {  // the second block finds what the first has left behind
        Block block(pairs, gap);
        block.fill([&] { return pair_of(uniform(random), uniform(random)); });
        block.multiply(*kernels);
        // Right: 6.2e-8, the order of the sums. One pair of 256 left out: 1.4e-2.
        CHECK(block.error() <= 2e-7);
      }
      kernels->end();
    }
  }
  CHECK(emulated::take_fault() == "");
  CHECK(emulated::threads_with_tiles == 0);
}

TEST_CASE("tensor/bf16_kernels: emulated sums are rounded where the instructions round") {
  const float big = 0x1p24f, tiny = 0x1p-127f;
  // AMX adds up the first and the second of each pair apart: (2^24 + 1) - 2^24, where 2^24 + 1 is 2^24.
  const std::vector<uint32_t> a = {pair_of(big, 0), pair_of(1, -big)}, ones(2, pair_of(1, 1));
  CHECK(sum_of(emulated::amx_kernels, a, ones) == 0);
  // AVX512_BF16 one after the other, the second of a pair first: (2^24 - 2^24) + 1.
  CHECK(sum_of(emulated::avx512_kernels, a, ones) == 1);
  CHECK(sum_of(emulated::avx512_kernels, {pair_of(1, big), pair_of(-big, 0)}, ones) == 0);
  for (const Bf16Kernels* kernels : {&emulated::amx_kernels, &emulated::avx512_kernels}) {
    CAPTURE(std::string(kernels->name));
    CHECK(sum_of(*kernels, {pair_of(tiny, 1)}, {pair_of(0x1p100f, 3)}) == 3);      // denormal operands are 0
    CHECK(sum_of(*kernels, {pair_of(0x1p-70f, 0)}, {pair_of(0x1p-70f, 0)}) == 0);  // and so are results
    // A product has more digits than bfloat16, and all of them count: (1 + 2^-7)^2.
    CHECK(sum_of(*kernels, {pair_of(0x1.02p0f, 0)}, {pair_of(0x1.02p0f, 0)}) == 0x1.0404p0f);
  }
}

TEST_CASE("tensor/bf16_kernels: emulated AVX512_BF16 gives the bits of the CPU's") {
  if (avx512_bf16_kernels() == nullptr) {
    MESSAGE("not run: this CPU has no AVX512_BF16");
    return;
  }
  std::mt19937 random(2);
  // Exponents around 2^0, around those whose products are denormal, and all, infinity and NaN included.
  struct Exponents {
    uint32_t first, count;
  };
  for (const Exponents exponents : {Exponents{120, 16}, {60, 8}, {0, 256}}) {
    CAPTURE(exponents.first);
    const auto number = [&] {
      const auto bits = static_cast<uint32_t>(random());
      return (bits & 0x807f) | (exponents.first + (bits >> 16) % exponents.count) << 7;
    };
    Block emulated(48), real(48);
    emulated.fill([&] { return number() | number() << 16; });
    real = emulated;
    emulated.multiply(emulated::avx512_kernels);
    real.multiply(*avx512_bf16_kernels());
    int64_t different = 0;
    for (int64_t i = 0; i < rows * columns; ++i) {
      const float x = emulated.sums[i], y = real.sums[i];
      const bool same =
          std::isnan(x) ? std::isnan(y) : std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
      different += !same;
    }
    CHECK(different == 0);
  }
  CHECK(emulated::take_fault() == "");
}

TEST_CASE("tensor/bf16_kernels: the emulation notices what a CPU would refuse or read by mistake") {
  using Amx = emulated::Amx;
  Amx::Tile<0> sums;
  Amx::Tile<1> a;
  Amx::Tile<2> b;
  const std::array<uint32_t, 16> line{};
  std::array<float, 16> to{};
  const auto fault_of = [](const auto& f) {
    f();
    return emulated::take_fault();
  };

  CHECK(fault_of([&] { sums.zero(); }) == "a tile without configuration");
  TileConfiguration configuration;
  configuration.palette = 2;
  CHECK(fault_of([&] { Amx::configure(configuration); }) == "no such configuration of tiles");
  configuration.palette = 1;
  configuration.rows[0] = configuration.rows[1] = configuration.rows[2] = 1;
  Amx::configure(configuration);
  CHECK(fault_of([&] { sums.zero(); }) == "");
  CHECK(fault_of([&] { sums.add_product(a, b); }) == "tiles that can't be multiplied");  // 1 x 16 by 1 x 16

  emulated::operands = {{line.data(), 1, 64, 64}, {}, {to.data(), 1, 64, 64}};
  CHECK(fault_of([&] { a.load(line.data(), 64); }) == "");
  CHECK(fault_of([&] { a.load(line.data() + 1, 64); }) == "read outside of the operands");
  CHECK(fault_of([&] { sums.store(to.data(), 64); }) == "");
  CHECK(fault_of([&] { sums.store(to.data() + 1, 64); }) == "write outside of the block");
  emulated::operands = {};

  CHECK(emulated::threads_with_tiles == 1);
  Amx::release();
  CHECK(emulated::threads_with_tiles == 0);
  CHECK(fault_of([&] { sums.zero(); }) == "a tile without configuration");
}
