// Random numbers: the counter-based generator Philox4x32-10.
//
// Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011). The same key and counter
// give the same words on every device, in any order and from any thread, and they are the words of cuRAND's
// CURAND_RNG_PSEUDO_PHILOX4_32_10. A generator's whole state is (seed, stream, position).
#pragma once

#include <array>
#include <cstdint>

#if defined(__CUDACC__)
#define MIXGRAD_HOST_DEVICE __host__ __device__
#else
#define MIXGRAD_HOST_DEVICE
#endif

namespace mixgrad {

inline constexpr int philox_rounds = 10;

/// One round of Philox on a counter.
MIXGRAD_HOST_DEVICE inline void philox_round(std::array<uint32_t, 2> key, uint32_t& c0, uint32_t& c1,
                                             uint32_t& c2, uint32_t& c3) {
  const uint64_t product0 = uint64_t{0xD2511F53} * c0;
  const uint64_t product1 = uint64_t{0xCD9E8D57} * c2;
  c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key[0];
  c1 = static_cast<uint32_t>(product1);
  c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key[1];
  c3 = static_cast<uint32_t>(product0);
}

/// The key of the round after.
MIXGRAD_HOST_DEVICE inline std::array<uint32_t, 2> next_philox_key(std::array<uint32_t, 2> key) {
  return {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
}

/// Ten rounds of Philox on one counter: four random words.
MIXGRAD_HOST_DEVICE inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                                              std::array<uint32_t, 2> key) {
  for (int round = 0; round < philox_rounds; ++round) {
    philox_round(key, counter[0], counter[1], counter[2], counter[3]);
    key = next_philox_key(key);
  }
  return counter;
}

/// A word as a float in (0, 1], as cuRAND maps it.
MIXGRAD_HOST_DEVICE inline float uniform_from_word(uint32_t word) {
  constexpr float scale = 2.3283064365386963e-10f;  // 2^-32
  return static_cast<float>(word) * scale + scale / 2;
}

/// Independent sequences of one seed: what each kind of chance in a run draws from.
enum class Stream : uint64_t { parameters, data, dropout, sampling };

/// The blocks of four words of one stream, addressed by index or drawn one after the other.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0, Stream stream = Stream::parameters, uint64_t position = 0)
      : seed_(seed), stream_(stream), position_(position) {}

  /// The four words of block `index`; drawing nothing.
  MIXGRAD_HOST_DEVICE std::array<uint32_t, 4> block(uint64_t index) const {
    return philox4x32(counter(index), key());
  }
  /// What the words of block `index` are made of.
  MIXGRAD_HOST_DEVICE std::array<uint32_t, 4> counter(uint64_t index) const {
    const auto stream = static_cast<uint64_t>(stream_);
    return {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(stream),
            static_cast<uint32_t>(stream >> 32)};
  }
  MIXGRAD_HOST_DEVICE std::array<uint32_t, 2> key() const {
    return {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)};
  }

  /// Draws the next block.
  std::array<uint32_t, 4> next() { return block(position_++); }
  /// Draws `blocks` blocks at once and returns the index of the first; the caller reads them by block().
  uint64_t reserve(uint64_t blocks) {
    const uint64_t first = position_;
    position_ += blocks;
    return first;
  }
  /// Draws a double in [0, 1) with 53 random bits.
  double uniform() {
    const auto words = next();
    return static_cast<double>((uint64_t{words[0]} << 32 | words[1]) >> 11) * 0x1p-53;
  }

  MIXGRAD_HOST_DEVICE uint64_t seed() const { return seed_; }
  MIXGRAD_HOST_DEVICE Stream stream() const { return stream_; }
  uint64_t position() const { return position_; }

 private:
  uint64_t seed_;
  Stream stream_;
  uint64_t position_;
};

}  // namespace mixgrad
