#include "nn/mixers/delta/delta.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/recurrence.h"

namespace mixgrad {

std::vector<MixerOption> delta_options() {
  return {{"key_heads", 0, 0, 1 << 16, true,
           "heads of queries and keys, each for a group of value heads; 0: as many as heads"},
          {"key_dim", 0, 0, 1 << 16, true, "size of a head's queries and keys: dk; 0: width / heads"},
          {"value_dim", 0, 0, 1 << 16, true, "size of a head's values: dv; 0: width / heads"},
          {"rate", 1, 1e-3, 2, false, "the largest rate of a write; above 1 it can turn what it finds"}};
}

namespace {

int64_t or_default(int64_t given, int64_t otherwise) { return given == 0 ? otherwise : given; }

int64_t key_heads(const MixerConfig& config, const std::string& name) {
  const int64_t count = or_default(config.integer_option("key_heads"), config.heads);
  check_usage(config.heads % count == 0, "[", name, "] key_heads ", count, " does not divide ", config.heads,
              " heads");
  return count;
}

}  // namespace

DeltaMixer::DeltaMixer(const MixerConfig& config, const std::string& name, const MixerForms& forms,
                       Initialiser& initialiser)
    : Mixer(config, name, forms),
      key_heads_(key_heads(config, name)),
      key_dim_(or_default(config.integer_option("key_dim"), config.width / config.heads)),
      value_dim_(or_default(config.integer_option("value_dim"), config.width / config.heads)),
      rate_(config.option("rate")),
      q_(config.width, key_heads_ * key_dim_, false, initialiser),
      k_(config.width, key_heads_ * key_dim_, false, initialiser),
      v_(config.width, config.heads * value_dim_, false, initialiser),
      beta_(config.width, config.heads, false, initialiser),
      q_conv_(key_heads_ * key_dim_, initialiser),
      k_conv_(key_heads_ * key_dim_, initialiser),
      v_conv_(config.heads * value_dim_, initialiser) {
  declare("q", q_);
  declare("k", k_);
  declare("v", v_);
  declare("beta", beta_);
  declare("q_conv", q_conv_);
  declare("k_conv", k_conv_);
  declare("v_conv", v_conv_);
}

MixerState DeltaMixer::initial_state(int64_t batch, int64_t) const {
  const Tensor& like = beta_.weight().value();
  MixerState state;
  state.tensors = {Tensor::zeros({batch, heads_, key_dim_, value_dim_}, like.dtype(), like.device()),
                   q_conv_.empty_tail(batch), k_conv_.empty_tail(batch), v_conv_.empty_tail(batch)};
  return state;
}

double DeltaMixer::flops_per_token(int64_t) const {
  // What the state answers to the key, the write and the read; convolutions; whatever the length.
  const auto convolved = static_cast<double>(2 * key_heads_ * key_dim_ + heads_ * value_dim_);
  return 6.0 * static_cast<double>(heads_ * key_dim_ * value_dim_) + 2 * ShortConv::taps * convolved;
}

Variable DeltaMixer::read(const MixerInput& input, const Variable& log_decay) {
  const Variable& x = input.x;
  const int64_t batch = x.shape()[0], length = x.shape()[1];
  MixerState* state = input.state;
  const auto tensor = [&](int index) { return state != nullptr ? &state->tensors[index] : nullptr; };
  const auto unit = [&](const Variable& convolved) {  // heads of length 1
    return l2_normalize(reshape(convolved, {batch, length, key_heads_, key_dim_}));
  };

  const Variable q = unit(q_conv_.forward(q_.forward(x), tensor(1), input.documents));  // [B, T, Hk, dk]
  const Variable k = unit(k_conv_.forward(k_.forward(x), tensor(2), input.documents));
  const Variable v = reshape(v_conv_.forward(v_.forward(x), tensor(3), input.documents),
                             {batch, length, heads_, value_dim_});
  const Variable beta = scale(sigmoid(beta_.forward(x)), rate_);  // [B, T, H]
  const DeltaRuleOptions options{.scale = 1 / std::sqrt(static_cast<double>(key_dim_)),
                                 .final_state = state != nullptr,
                                 .documents = input.documents};
  const Variable memory = state != nullptr ? Variable(*tensor(0)) : Variable();
  const Recurrence read = delta_rule(q, k, v, beta, options, log_decay, memory);
  if (state != nullptr) {
    *tensor(0) = read.state.value();
    state->position += length;
  }
  return read.output;
}

namespace {

const MixerForms forms{.causal = true, .documents = true};

/// Nothing is forgotten but what is overwritten.
class Delta final : public DeltaMixer {
 public:
  Delta(const MixerConfig& config, Initialiser& initialiser)
      : DeltaMixer(config, "delta", forms, initialiser),
        out_(heads_ * value_dim_, width_, false, initialiser),
        norm_(initialiser.constant({value_dim_}, 1)) {
    declare("out", out_);
    declare("norm", norm_, Decay::no);
  }

 protected:
  Variable mix(const MixerInput& input) override {
    const Variable o = rms_norm(read(input, {}), norm_);
    return out_.forward(reshape(o, {o.shape()[0], o.shape()[1], heads_ * value_dim_}));
  }

 private:
  Linear out_;
  Variable norm_;
};

}  // namespace

MixerKind delta_mixer() {
  return {.name = "delta",
          .summary = "DeltaNet: a matrix state that is corrected instead of added to",
          .forms = forms,
          .options = delta_options(),
          .check_options = "key_dim=3,value_dim=5,rate=1.5",
          .make = [](const MixerConfig& config, Initialiser& initialiser) -> std::unique_ptr<Mixer> {
            return std::make_unique<Delta>(config, initialiser);
          }};
}

}  // namespace mixgrad
