#include "nn/mixers/delta/delta.h"

#include <cmath>

#include "autograd/ops/delta_product.h"
#include "autograd/ops/elementwise.h"

namespace mixgrad {

std::vector<MixerOption> delta_size_options() {
  return {{"key_heads", 0, 0, 1 << 16, true,
           "heads of queries and keys, each for a group of value heads; 0: as many as heads"},
          {"key_dim", 0, 0, 1 << 16, true, "size of a head's queries and keys: dk; 0: width / heads"},
          {"value_dim", 0, 0, 1 << 16, true, "size of a head's values: dv; 0: width / heads"}};
}

std::vector<MixerOption> delta_options(double rate) {
  std::vector<MixerOption> options = delta_size_options();
  options.push_back(
      {"rate", rate, 0, 2, false, "the largest rate of a write; above 1 it can turn what it finds; 0: none"});
  return options;
}

RecurrentParts delta_parts(const MixerConfig& config, const std::string& mixer) {
  return {.key_heads = config.group_option(mixer, "key_heads"),
          .key_dim = config.size_option("key_dim", config.width / config.heads),
          .value_dim = config.size_option("value_dim", config.width / config.heads),
          .convolution = true};
}

DeltaMixer::DeltaMixer(const MixerConfig& config, const std::string& name, const RecurrentParts& parts,
                       Initialiser& initialiser)
    : RecurrentMixer(config, name, forms, parts, initialiser),
      rate_(config.option("rate")),
      beta_(width_, parts.steps * heads_, false, initialiser) {
  declare("beta", beta_);
}

double DeltaMixer::flops_per_token(int64_t length) const {
  // What the state answers to the keys.
  return RecurrentMixer::flops_per_token(length) + 2 * static_cast<double>(parts_.steps) * state_size();
}

Recurrence DeltaMixer::recur(const Operands& in) {
  const Variable& x = in.input.x;
  const Variable q = l2_normalize(in.q), k = l2_normalize(in.k);
  const Variable beta = scale(sigmoid(beta_.forward(x)), rate_);  // [B, T, n H]
  const DeltaRuleOptions options{.scale = 1 / std::sqrt(static_cast<double>(parts_.key_dim)),
                                 .final_state = in.input.state != nullptr,
                                 .documents = in.input.documents};
  if (parts_.steps == 1) return delta_rule(q, k, in.v, beta, options, log_decay(x), in.state);
  const Variable rates = reshape(beta, {x.shape()[0], x.shape()[1], parts_.steps, heads_});
  return delta_product(q, k, in.v, rates, options, log_decay(x), in.state);
}

namespace {

/// Nothing is forgotten but what is overwritten.
class Delta final : public DeltaMixer {
 public:
  Delta(const MixerConfig& config, Initialiser& initialiser)
      : DeltaMixer(config, "delta", delta_parts(config, "delta"), initialiser) {}
};

}  // namespace

MixerKind delta_mixer() {
  return {.name = "delta",
          .summary = "DeltaNet: a matrix state that is corrected instead of added to",
          .forms = DeltaMixer::forms,
          .options = delta_options(),
          .check_options = "key_dim=3,value_dim=5,rate=1.5",
          .make = construct<Delta>};
}

}  // namespace mixgrad
