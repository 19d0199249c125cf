// Our random numbers against those of cuRAND, whose generator for the host needs no GPU.
#include "tensor/random.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

#if defined(MIXGRAD_CURAND)
#include <curand.h>
#endif

namespace mixgrad {

#if defined(MIXGRAD_CURAND)

namespace {

/// cuRAND's generator of one seed, at a word of its sequence.
class HostGenerator {
 public:
  HostGenerator(uint64_t seed, uint64_t first_word) {
    REQUIRE(curandCreateGeneratorHost(&generator_, CURAND_RNG_PSEUDO_PHILOX4_32_10) == CURAND_STATUS_SUCCESS);
    REQUIRE(curandSetPseudoRandomGeneratorSeed(generator_, seed) == CURAND_STATUS_SUCCESS);
    REQUIRE(curandSetGeneratorOffset(generator_, first_word) == CURAND_STATUS_SUCCESS);
  }
  ~HostGenerator() { curandDestroyGenerator(generator_); }
  HostGenerator(const HostGenerator&) = delete;
  HostGenerator& operator=(const HostGenerator&) = delete;

  std::vector<uint32_t> words(size_t count) {
    std::vector<uint32_t> words(count);
    REQUIRE(curandGenerate(generator_, words.data(), count) == CURAND_STATUS_SUCCESS);
    return words;
  }
  std::vector<float> uniforms(size_t count) {
    std::vector<float> uniforms(count);
    REQUIRE(curandGenerateUniform(generator_, uniforms.data(), count) == CURAND_STATUS_SUCCESS);
    return uniforms;
  }

 private:
  curandGenerator_t generator_;
};

// The generator for the host deals out 65536 streams, cuRAND's subsequences, a block of four words of each in
// turn: block b of stream s begins at its word 4 (65536 b + s).
constexpr uint64_t streams = 65536;

}  // namespace

TEST_CASE("cuda/random: words and uniforms are those of cuRAND") {
  constexpr uint64_t seed = 0x1122334455667788;
  for (const uint64_t block : {uint64_t{0}, uint64_t{1}, uint64_t{70'000}}) {
    CAPTURE(block);
    const std::vector<uint32_t> words = HostGenerator(seed, 4 * streams * block).words(16);
    const std::vector<float> uniforms = HostGenerator(seed, 4 * streams * block).uniforms(16);
    for (const uint64_t stream : {0, 1, 2, 3}) {
      CAPTURE(stream);
      const std::array<uint32_t, 4> ours = Generator(seed, static_cast<Stream>(stream)).block(block);
      for (int i = 0; i < 4; ++i) {
        CHECK(ours[i] == words[4 * stream + i]);
        CHECK(uniform_from_word(ours[i]) == uniforms[4 * stream + i]);
      }
    }
  }
}

#else

TEST_CASE("cuda/random: words and uniforms are those of cuRAND") {
  MESSAGE("not run: no cuRAND was found when this was configured");
}

#endif

}  // namespace mixgrad
