// Longhorn: a memory whose every write is the exact solution of a small regression. Derivation in
// longhorn.md.
#include "autograd/ops/longhorn.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/scan.h"
#include "nn/mixers/delta/delta.h"

namespace mixgrad {

namespace {

RecurrentParts longhorn_parts(const MixerConfig& config) {
  RecurrentParts parts = delta_parts(config, "longhorn");
  parts.gate = GateFunction::silu;
  return parts;
}

/// Keys need no normalisation: the step is stable for any length.
class Longhorn final : public RecurrentMixer {
 public:
  Longhorn(const MixerConfig& config, Initialiser& initialiser)
      : RecurrentMixer(config, "longhorn", DeltaMixer::forms, longhorn_parts(config), initialiser),
        diagonal_(config.option("diagonal") != 0),
        beta_(width_, diagonal_ ? heads_ * parts_.value_dim : heads_, false, initialiser) {
    declare("beta", beta_);
  }

  double flops_per_token(int64_t length) const override {
    return RecurrentMixer::flops_per_token(length) + 2 * state_size();  // what the state answers to the key
  }

 private:
  Recurrence recur(const Operands& in) override {
    const double scale = 1 / std::sqrt(static_cast<double>(parts_.key_dim));
    const Variable beta = sigmoid(beta_.forward(in.input.x));
    if (diagonal_) return recur_by_channels(in, reshape(beta, in.v.shape()), scale);
    const DeltaRuleOptions options{
        .scale = scale, .final_state = in.input.state != nullptr, .documents = in.input.documents};
    return longhorn(in.q, in.k, in.v, beta, options, in.state);
  }

  /// The state's numbers are in the scan's order then, value channels first, whatever its shape says.
  Recurrence recur_by_channels(const Operands& in, const Variable& beta, double scale) const {
    const int64_t batch = in.v.shape()[0];
    const Shape channels_first{batch, heads_ * parts_.value_dim, parts_.key_dim};
    const Variable before = in.state.defined() ? reshape(in.state, channels_first) : Variable();
    const bool wanted = in.input.state != nullptr;
    const Scan read = longhorn_diagonal(in.q, in.k, in.v, beta, scale, before, wanted, in.input.documents);
    const Shape rows_first{batch, heads_, parts_.key_dim, parts_.value_dim};
    return {read.output, wanted ? reshape(read.state, rows_first) : Variable(), {}};
  }

  const bool diagonal_;

  Linear beta_;
};

}  // namespace

MixerKind longhorn_mixer() {
  std::vector<MixerOption> options = delta_size_options();
  options.push_back({"diagonal", 0, 0, 1, true,
                     "1: each entry of the state is corrected by itself, at rates for each value channel"});
  return {.name = "longhorn",
          .summary = "Longhorn: each write solves for the nearest state that gives its value",
          .forms = DeltaMixer::forms,
          .options = options,
          .check_options = "key_heads=1,key_dim=3,value_dim=5",
          .causal_check_options = {"key_heads=1,key_dim=3,value_dim=5,diagonal=1"},
          .make = construct<Longhorn>};
}

}  // namespace mixgrad
