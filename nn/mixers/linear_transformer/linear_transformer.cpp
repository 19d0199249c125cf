// Linear attention with positive features, whose outputs are means of values. Derivation in
// linear_transformer.md.
#include "autograd/ops/elementwise.h"
#include "nn/mixers/linear/linear.h"

namespace mixgrad {

namespace {

RecurrentParts normalised_parts(const MixerConfig& config) {
  RecurrentParts parts = LinearMixer::parts(config);
  parts.normaliser = true;
  parts.norm = false;
  return parts;
}

class LinearTransformer final : public LinearMixer {
 public:
  LinearTransformer(const MixerConfig& config, Initialiser& initialiser)
      : LinearMixer(config, "linear_transformer", normalised_parts(config), 1, initialiser) {}

 private:
  Variable features(const Variable& x) const override { return elu_plus_one(x); }
};

}  // namespace

MixerKind linear_transformer_mixer() {
  return {.name = "linear_transformer",
          .summary = "linear attention with the features elu(x) + 1: a weighted mean of values",
          .forms = LinearMixer::forms,
          .options = {},
          .check_options = "",
          .make = construct<LinearTransformer>};
}

}  // namespace mixgrad
