// Training memory grows with the length, not with its square.
#include <doctest/doctest.h>

#include <cmath>

#include "autograd/tape.h"
#include "nn/mixer.h"
#include "tensor/allocator.h"

namespace mixgrad {

TEST_CASE("mixers: peak memory of forward and backward is linear in the length") {
  // Slopes of log bytes over log length, from 512 to 4096 tokens. Right: 0.94 to 1.0; holding the
  // scores: 1.9.
  Allocator& memory = Allocator::of(Device{});
  for (const MixerKind& kind : mixer_kinds()) {
    CAPTURE(kind.name);
    Generator generator(3);
    Initialiser initialiser(DType::float32, Device{}, generator);
    const std::string pattern = kind.name == "linformer" ? "linformer(longest=4096)" : kind.name;
    const auto mixer = make_mixer(parse_pattern(pattern, 1)[0], 32, 2, false, initialiser);
    const auto peak_bytes = [&](int64_t length) {
      const Variable x(normal({1, length, 32}, 1, generator, DType::float32));
      mixer->zero_grad();
      const int64_t before = memory.stats().live_bytes;
      memory.reset_peak();
      const Variable y = mixer->forward({.x = x, .context = {}, .key_mask = {}, .causal = kind.forms.causal});
      backward({y}, {Tensor::full(y.shape(), 1, y.dtype())});
      return static_cast<double>(memory.stats().peak_bytes - before);
    };
    const double slope = std::log(peak_bytes(4096) / peak_bytes(512)) / std::log(8.0);
    MESSAGE(kind.name << ": slope " << slope);
    CHECK(slope > 0.5);
    CHECK(slope <= 1.05);
  }
}

}  // namespace mixgrad
