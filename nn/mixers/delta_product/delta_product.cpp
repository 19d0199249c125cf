// Delta product: several corrections of the memory for each token. Derivation in delta_product.md.
#include "nn/mixers/gated_delta/gated_delta.h"

namespace mixgrad {

namespace {

RecurrentParts product_parts(const MixerConfig& config) {
  RecurrentParts parts = gated_delta_parts(config, "delta_product");
  parts.steps = config.integer_option("steps");
  return parts;
}

class DeltaProduct final : public GatedDelta {
 public:
  DeltaProduct(const MixerConfig& config, Initialiser& initialiser)
      : GatedDelta(config, "delta_product", product_parts(config), initialiser) {}
};

}  // namespace

MixerKind delta_product_mixer() {
  std::vector<MixerOption> options = delta_options(2);
  options.push_back({"steps", 2, 1, 64, true, "corrections a token, each with its own key, value and rate"});
  return {
      .name = "delta_product",
      .summary = "the gated delta rule with several corrections a token, whose product can turn the state",
      .forms = DeltaMixer::forms,
      .options = options,
      .check_options = "key_heads=1,key_dim=3,value_dim=5,steps=3",
      .make = construct<DeltaProduct>};
}

}  // namespace mixgrad
