// Compiled for AMX, whatever the rest of the build is compiled for. Intel: Architecture instruction set
// extensions programming reference, chapter 3.
#include "tensor/cpu/bf16_kernels.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mixgrad {

namespace {

struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// All eight tiles as 16 rows of 64 bytes.
void configure_tiles() {
  static const TileConfiguration configuration;
  // Not _tile_loadconfig: g++ 12 takes it to read 8 bytes and may drop the rest.
  asm volatile("ldtilecfg %0" ::"m"(configuration));
}

void release_tiles() { _tile_release(); }

/// Four tiles of sums; two of a's rows and two of b's columns at a time.
void multiply(int64_t pairs, const uint32_t* a, int64_t a_line, const uint32_t* b, float* block) {
  constexpr int64_t half = 16, row_bytes = Bf16Kernels::columns * sizeof(float);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t p = 0; p < pairs; p += half) {
    _tile_loadd(4, a + p, a_line * sizeof(uint32_t));
    _tile_loadd(5, a + half * a_line + p, a_line * sizeof(uint32_t));
    _tile_loadd(6, b + p * Bf16Kernels::columns, row_bytes);
    _tile_loadd(7, b + p * Bf16Kernels::columns + half, row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, block, row_bytes);
  _tile_stored(1, block + half, row_bytes);
  _tile_stored(2, block + half * Bf16Kernels::columns, row_bytes);
  _tile_stored(3, block + half * Bf16Kernels::columns + half, row_bytes);
}

/// Linux lets a process use the tiles' 8 KiB of state only when it asks.
bool permitted() {
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

const Bf16Kernels* amx_kernels() {
  static constexpr Bf16Kernels kernels{"AMX", configure_tiles, release_tiles, multiply};
  static const bool usable =
      __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && permitted();
  return usable ? &kernels : nullptr;
}

}  // namespace mixgrad

#else

namespace mixgrad {
const Bf16Kernels* amx_kernels() { return nullptr; }
}  // namespace mixgrad

#endif
