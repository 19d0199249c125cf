// Compiled for AMX, whatever the rest of the build is compiled for.
#include "tensor/cpu/bf16_kernels_amx.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

namespace mixgrad {

namespace {

/// The instructions themselves. The compiler's functions for them want a tile's number as a literal, and that
/// of g++ 12 for LDTILECFG takes it to read 8 bytes and may drop the rest.
struct Amx {
  static void configure(const TileConfiguration& configuration) {
    asm volatile("ldtilecfg %0" ::"m"(configuration));
  }
  static void release() { asm volatile("tilerelease"); }

  template <int number>
  struct Tile {
    static void zero() { asm volatile("tilezero %%tmm%c0" ::"i"(number)); }
    /// `stride` bytes from row to row.
    static void load(const uint32_t* rows, int64_t stride) {
      asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(number) : "memory");
    }
    static void store(float* rows, int64_t stride) {
      asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(number) : "memory");
    }
    template <int a, int b>
    static void add_product(Tile<a>, Tile<b>) {
      asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(number), "i"(a), "i"(b));
    }
  };
};

/// Linux lets a process use the tiles' 8 KiB of state only when it asks.
bool permitted() {
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

const Bf16Kernels* amx_kernels() {
  using Kernels = AmxKernels<Amx>;
  static constexpr Bf16Kernels kernels{"AMX", Kernels::begin, Kernels::end, Kernels::multiply};
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
