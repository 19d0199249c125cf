#include "nn/mixers/linear/linear.h"

#include <cmath>

#include "autograd/ops/elementwise.h"

namespace mixgrad {

RecurrentParts LinearMixer::parts(const MixerConfig& config) {
  const int64_t size = config.width / config.heads;
  return {.key_heads = config.heads, .key_dim = size, .value_dim = size};
}

LinearMixer::LinearMixer(const MixerConfig& config, const std::string& name, const RecurrentParts& parts,
                         double scale, Initialiser& initialiser)
    : RecurrentMixer(config, name, forms, parts, initialiser), scale_(scale) {}

Recurrence LinearMixer::recur(const Operands& in) {
  const MixerInput& input = in.input;
  // Masked by selection: 0 times a value that is not finite would still be written.
  const auto masked = [&](const Variable& x) {
    return input.key_mask.defined() ? mask_rows(x, input.key_mask) : x;
  };
  const RecurrenceOptions options{.causal = input.causal,
                                  .normalise = parts_.normaliser,
                                  .scale = scale_,
                                  .final_state = input.state != nullptr,
                                  .documents = input.documents};
  return recurrence(features(in.q), masked(features(in.k)), masked(in.v), options, {}, in.state,
                    in.normaliser);
}

namespace {

/// Without a normaliser: the outputs are normalised instead, so that features may be of either sign.
class LinearAttention final : public LinearMixer {
 public:
  LinearAttention(const MixerConfig& config, Initialiser& initialiser)
      : LinearMixer(config, "linear", parts(config),
                    1 / std::sqrt(static_cast<double>(config.width / config.heads)), initialiser),
        silu_(config.option("silu") != 0) {}

 private:
  Variable features(const Variable& x) const override { return silu_ ? silu(x) : x; }

  const bool silu_;
};

}  // namespace

MixerKind linear_mixer() {
  return {.name = "linear",
          .summary = "linear attention: a matrix state that only adds, normalised as it is read",
          .forms = LinearMixer::forms,
          .options = {{"silu", 1, 0, 1, true, "1: queries and keys pass through silu; 0: as they are"}},
          .check_options = "silu=0",
          .make = construct<LinearAttention>};
}

}  // namespace mixgrad
