// AMX and AVX512_BF16 in plain C++, as far as the bfloat16 kernels use them, so that every machine runs the
// source of these kernels. Written after the operations in Intel's Architecture instruction set extensions
// programming reference; what would be an exception or a read of foreign memory there is a fault here, kept
// for the test.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cfloat>
#include <cmath>
#include <mutex>
#include <string>
#include <utility>

#include "tensor/cpu/bf16_kernels_amx.h"
#include "tensor/cpu/bf16_kernels_avx512.h"

namespace mixgrad::emulated {

/// What went wrong first since take_fault(), which tells; "" for nothing. Kernels must not throw on the
/// pool's threads.
inline std::string first_fault;
inline std::mutex fault_mutex;

inline bool expect(bool ok, const char* fault) {
  if (ok) return true;
  const std::lock_guard lock(fault_mutex);
  if (first_fault.empty()) first_fault = fault;
  return false;
}
inline std::string take_fault() {
  const std::lock_guard lock(fault_mutex);
  return std::exchange(first_fault, "");
}

/// Rows of memory, `stride` bytes apart, which is not 0.
struct Region {
  const void* begin = nullptr;
  int64_t rows = 0, row_bytes = 0, stride = 1;

  bool holds(const void* at, int64_t bytes) const {
    const auto offset =
        static_cast<int64_t>(reinterpret_cast<intptr_t>(at) - reinterpret_cast<intptr_t>(begin));
    return offset >= 0 && offset / stride < rows && offset % stride + bytes <= row_bytes;
  }
};

/// What the kernel that runs on this thread may read and write.
struct Operands {
  Region a, b, block;
};
inline thread_local Operands operands;

inline uint32_t read(const uint32_t* from) {
  const bool inside = operands.a.holds(from, sizeof *from) || operands.b.holds(from, sizeof *from);
  return expect(inside, "read outside of the operands") ? *from : 0;
}
inline void write(float* to, float value) {
  if (expect(operands.block.holds(to, sizeof *to), "write outside of the block")) *to = value;
}

/// Kernels::multiply, held to the memory that Bf16Kernels::multiply is given.
template <class Kernels>
void multiply(int64_t pairs, const uint32_t* a, int64_t a_line, const uint32_t* b, float* block) {
  constexpr int64_t rows = Bf16Kernels::rows, column_bytes = 4 * Bf16Kernels::columns;
  operands = {{a, rows, 4 * pairs, 4 * std::max<int64_t>(1, a_line)},
              {b, pairs, column_bytes, column_bytes},
              {block, rows, column_bytes, column_bytes}};
  Kernels::multiply(pairs, a, a_line, b, block);
  operands = {};
}

/// Denormal numbers are 0 for these instructions, as operands and as results.
inline float flushed(float x) { return std::abs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }
inline float first_of(uint32_t pair) { return flushed(std::bit_cast<float>(pair << 16)); }
inline float second_of(uint32_t pair) { return flushed(std::bit_cast<float>(pair & 0xffff0000)); }
/// sum + x y, rounded once: the product is exact in double, and a sum in double has digits enough to be
/// rounded again.
inline float multiply_add(float sum, float x, float y) {
  return flushed(static_cast<float>(double{flushed(sum)} + double{x} * double{y}));
}

/// The tiles of one thread.
struct Tiles {
  bool configured = false;
  TileConfiguration configuration;
  std::array<std::array<std::array<uint32_t, 16>, 16>, 8> values;  // [tile][row][column]
};
inline thread_local Tiles tiles;
inline std::atomic<int> threads_with_tiles = 0;

struct Amx {
  static void configure(const TileConfiguration& configuration) {  // LDTILECFG
    bool legal = configuration.palette == 1 && configuration.start_row == 0;
    for (const uint8_t reserved : configuration.reserved) legal &= reserved == 0;
    for (int tile = 0; tile < 16; ++tile) {
      const int rows = configuration.rows[tile], bytes = configuration.row_bytes[tile];
      legal &= tile < 8 ? rows <= 16 && bytes <= 64 && bytes % 4 == 0 : rows == 0 && bytes == 0;
    }
    if (!expect(legal, "no such configuration of tiles")) return;
    threads_with_tiles += !tiles.configured;
    tiles = {true, configuration, {}};
  }
  static void release() {  // TILERELEASE
    threads_with_tiles -= tiles.configured;
    tiles.configured = false;
  }

  template <int number>
  struct Tile {
    static_assert(number >= 0 && number < 8);
    static auto& row(int index) { return tiles.values[number][index]; }
    static int rows() { return tiles.configuration.rows[number]; }
    static int columns() { return tiles.configuration.row_bytes[number] / 4; }
    static bool usable() {
      return expect(tiles.configured && rows() * columns() > 0, "a tile without configuration");
    }

    static void zero() {  // TILEZERO
      if (usable()) tiles.values[number] = {};
    }
    static void load(const uint32_t* from, int64_t stride) {  // TILELOADD
      if (!usable()) return;
      zero();
      for (int i = 0; i < rows(); ++i) {
        for (int j = 0; j < columns(); ++j) row(i)[j] = read(from + i * stride / 4 + j);
      }
    }
    static void store(float* to, int64_t stride) {  // TILESTORED
      if (!usable()) return;
      for (int i = 0; i < rows(); ++i) {
        for (int j = 0; j < columns(); ++j) write(to + i * stride / 4 + j, std::bit_cast<float>(row(i)[j]));
      }
    }
    /// TDPBF16PS: the products of first and those of second elements are added up apart, from 0.
    template <int a, int b>
    static void add_product(Tile<a>, Tile<b>) {
      using A = Tile<a>;
      using B = Tile<b>;
      static_assert(number != a && number != b && a != b);
      if (!usable() || !A::usable() || !B::usable()) return;
      const bool fit = A::rows() == rows() && A::columns() == B::rows() && B::columns() == columns();
      if (!expect(fit, "tiles that can't be multiplied")) return;
      for (int i = 0; i < rows(); ++i) {
        for (int j = 0; j < columns(); ++j) {
          float first = 0, second = 0;
          for (int p = 0; p < A::columns(); ++p) {
            first = multiply_add(first, first_of(A::row(i)[p]), first_of(B::row(p)[j]));
            second = multiply_add(second, second_of(A::row(i)[p]), second_of(B::row(p)[j]));
          }
          const float sum = flushed(std::bit_cast<float>(row(i)[j]));
          row(i)[j] = std::bit_cast<uint32_t>(flushed(sum + flushed(first + second)));
        }
      }
    }
  };
};

struct Avx512 {
  using Floats = std::array<float, 16>;
  using Pairs = std::array<uint32_t, 16>;

  static Pairs load(const uint32_t* from) {  // VMOVDQU32
    Pairs pairs;
    for (int lane = 0; lane < 16; ++lane) pairs[lane] = read(from + lane);
    return pairs;
  }
  static Pairs broadcast(const uint32_t* from) {  // VPBROADCASTD
    Pairs pairs;
    pairs.fill(read(from));
    return pairs;
  }
  /// VDPBF16PS: one product after the other, that of the second elements first.
  static Floats add_products(Floats sums, const Pairs& a, const Pairs& b) {
    for (int lane = 0; lane < 16; ++lane) {
      sums[lane] = multiply_add(sums[lane], second_of(a[lane]), second_of(b[lane]));
      sums[lane] = multiply_add(sums[lane], first_of(a[lane]), first_of(b[lane]));
    }
    return sums;
  }
  static void store(float* to, const Floats& sums) {  // VMOVUPS
    for (int lane = 0; lane < 16; ++lane) write(to + lane, sums[lane]);
  }
};

template <class Kernels>
constexpr Bf16Kernels kernels_of(const char* name) {
  return {name, Kernels::begin, Kernels::end, multiply<Kernels>};
}
inline constexpr Bf16Kernels amx_kernels = kernels_of<AmxKernels<Amx>>("AMX, emulated");
inline constexpr Bf16Kernels avx512_kernels = kernels_of<Avx512Bf16Kernels<Avx512>>("AVX512_BF16, emulated");

}  // namespace mixgrad::emulated
