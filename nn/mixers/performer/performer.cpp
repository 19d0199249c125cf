// Performer: linear attention whose random features estimate softmax attention. Derivation in performer.md.
#include "autograd/ops/performer.h"

#include <cmath>

#include "nn/mixers/linear/linear.h"

namespace mixgrad {

namespace {

/// Row i, made orthogonal to `before` rows above it and as long as `length`.
void orthogonalise(double* row, const double* above, int64_t before, int64_t size, double length) {
  const auto dot = [&](const double* a, const double* b) {
    double sum = 0;
    for (int64_t c = 0; c < size; ++c) sum += a[c] * b[c];
    return sum;
  };
  for (int64_t j = 0; j < before; ++j) {
    const double* other = above + j * size;
    const double share = dot(row, other) / dot(other, other);
    for (int64_t c = 0; c < size; ++c) row[c] -= share * other[c];
  }
  const double factor = length / std::sqrt(dot(row, row));
  for (int64_t c = 0; c < size; ++c) row[c] *= factor;
}

/// Normal vectors [m, d] of which each d in a row are orthogonal; their lengths are those of independent
/// ones.
Tensor orthogonal_normals(int64_t count, int64_t size, Generator& generator) {
  Tensor directions = normal({count, size}, 1, generator, DType::float64);
  const std::vector<double> lengths = normal({count, size}, 1, generator, DType::float64).to_vector();
  auto* rows = directions.data<double>();
  for (int64_t i = 0; i < count; ++i) {
    double squares = 0;
    for (int64_t c = 0; c < size; ++c) squares += lengths[i * size + c] * lengths[i * size + c];
    const int64_t before = i % size;
    orthogonalise(rows + i * size, rows + (i - before) * size, before, size, std::sqrt(squares));
  }
  return directions;
}

RecurrentParts performer_parts(const MixerConfig& config) {
  RecurrentParts parts = LinearMixer::parts(config);
  const auto size = static_cast<double>(parts.key_dim);
  parts.features =
      config.size_option("features", std::max<int64_t>(1, static_cast<int64_t>(size * std::log(size))));
  parts.normaliser = true;
  parts.norm = false;
  return parts;
}

class Performer final : public LinearMixer {
 public:
  Performer(const MixerConfig& config, Initialiser& initialiser)
      : LinearMixer(config, "performer", performer_parts(config), 1, initialiser),
        projection_(drawn(config.integer_option("seed")).to(initialiser.dtype()).to(initialiser.device())) {}

  double flops_per_token(int64_t length) const override {
    const auto projected = static_cast<double>(2 * heads_ * parts_.features * parts_.key_dim);
    return LinearMixer::flops_per_token(length) + 2 * projected;  // of query and key
  }

 private:
  Variable features(const Variable& x) const override {
    const Variable W(projection_.to(x.dtype()).to(x.value().device()));
    return performer_features(x, W, 1e-4);
  }

  /// From a seed of its own: no parameter, and yet the same whenever the model is loaded.
  Tensor drawn(int64_t seed) const {
    Generator generator(static_cast<uint64_t>(seed));
    return orthogonal_normals(parts_.features, parts_.key_dim, generator);
  }

  const Tensor projection_;  // [m, d], for all heads
};

}  // namespace

MixerKind performer_mixer() {
  return {.name = "performer",
          .summary = "Performer: linear attention with random features that estimate softmax attention",
          .forms = LinearMixer::forms,
          .options = {{"features", 0, 0, 1 << 16, true,
                       "random features a head: m; 0: d ln d, d = width / heads, rounded down"},
                      {"seed", 1, 0, 1 << 30, true, "what the features are drawn from"}},
          .check_options = "features=5",
          .make = construct<Performer>};
}

}  // namespace mixgrad
