// Gated linear attention: every row of the state forgets at a rate that the token chooses. Derivation in
// gla.md.
#include <cmath>

#include "autograd/ops/elementwise.h"
#include "nn/recurrent_mixer.h"

namespace mixgrad {

namespace {

const MixerForms forms{.causal = true, .documents = true, .recorded_state = true};

RecurrentParts gla_parts(const MixerConfig& config) {
  const int64_t size = config.width / config.heads;
  return {.key_heads = config.heads,
          .key_dim = config.size_option("key_dim", std::max<int64_t>(1, size / 2)),
          .value_dim = config.size_option("value_dim", size),
          .gate = GateFunction::silu};
}

class Gla final : public RecurrentMixer {
 public:
  Gla(const MixerConfig& config, Initialiser& initialiser)
      : RecurrentMixer(config, "gla", forms, gla_parts(config), initialiser),
        decay_down_(width_, config.integer_option("decay_rank"), false, initialiser),
        decay_up_(config.integer_option("decay_rank"), heads_ * parts_.key_dim, true, initialiser) {
    declare("decay_down", decay_down_);
    declare("decay_up", decay_up_);
  }

  double flops_per_token(int64_t length) const override {
    return RecurrentMixer::flops_per_token(length) + state_size();  // which decays
  }

 private:
  Recurrence recur(const Operands& in) override {
    // A sixteenth of a log sigmoid: a sigmoid alone would halve the state with every token at the start.
    const Variable log_decay =
        scale(log_sigmoid(decay_up_.forward(decay_down_.forward(in.input.x))), 1.0 / 16);
    const RecurrenceOptions options{.scale = 1 / std::sqrt(static_cast<double>(parts_.key_dim)),
                                    .final_state = in.input.state != nullptr,
                                    .documents = in.input.documents};
    return recurrence(in.q, in.k, in.v, options, reshape(log_decay, in.k.shape()), in.state);
  }

  Linear decay_down_, decay_up_;
};

}  // namespace

MixerKind gla_mixer() {
  return {.name = "gla",
          .summary = "gated linear attention: a decay for each channel of the keys, an output gate",
          .forms = forms,
          .options = {{"key_dim", 0, 0, 1 << 16, true,
                       "size of a head's queries and keys: dk; 0: half of width / heads"},
                      {"value_dim", 0, 0, 1 << 16, true, "size of a head's values: dv; 0: width / heads"},
                      {"decay_rank", 16, 1, 1 << 16, true, "numbers that the decays are computed from"}},
          .check_options = "key_dim=3,value_dim=5,decay_rank=2",
          .make = construct<Gla>};
}

}  // namespace mixgrad
