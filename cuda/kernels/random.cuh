// Random words on a GPU: cuRAND's Philox, and in the simulator our own. Both give the words of the host's
// Generator, bit for bit.
#pragma once

#include "cuda/device_code.h"
#include "tensor/random.h"
#if defined(__CUDACC__)
#include <curand_kernel.h>
#endif

namespace mixgrad {

#if defined(__CUDACC__)

/// The four words of block `index` < 2^62 of the generator's stream. cuRAND calls a stream a subsequence, and
/// counts its words, four to a block. The compiler sees that all but one of the blocks that cuRAND computes
/// on the way are not used.
__device__ inline std::array<uint32_t, 4> random_block(const Generator& generator, uint64_t index) {
  curandStatePhilox4_32_10_t state;
  curand_init(generator.seed(), static_cast<uint64_t>(generator.stream()), 4 * index, &state);
  const uint4 words = curand4(&state);
  return {words.x, words.y, words.z, words.w};
}

#else

inline std::array<uint32_t, 4> random_block(const Generator& generator, uint64_t index) {
  return generator.block(index);
}

#endif

}  // namespace mixgrad
