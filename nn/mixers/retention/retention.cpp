// Retention: linear attention in which each head forgets at its own fixed rate. Derivation in retention.md.
#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/rope.h"
#include "nn/recurrent_mixer.h"

namespace mixgrad {

namespace {

const MixerForms forms{.causal = true, .documents = true, .rope = true, .recorded_state = true};

RecurrentParts retention_parts(const MixerConfig& config) {
  const int64_t size = config.width / config.heads;
  return {.key_heads = config.heads,
          .key_dim = config.size_option("key_dim", size),
          .value_dim = config.size_option("value_dim", 2 * size),
          .gate = GateFunction::silu};
}

/// Rotates queries and keys whether or not the model asks for rotary positions: that is part of it.
class Retention final : public RecurrentMixer {
 public:
  Retention(const MixerConfig& config, Initialiser& initialiser)
      : RecurrentMixer(config, "retention", forms, retention_parts(config), initialiser),
        theta_(config.option("theta")),
        log_decay_(log_decays(heads_).to(initialiser.dtype()).to(initialiser.device())) {
    check_usage(parts_.key_dim % 2 == 0, "[retention] rotation turns pairs: the key size ", parts_.key_dim,
                " must be even");
  }

  double flops_per_token(int64_t length) const override {
    return RecurrentMixer::flops_per_token(length) + state_size();  // which decays
  }

 private:
  /// log(1 - 2^(-5 - h)): memories of 32, 64, 128 ... tokens.
  static Tensor log_decays(int64_t heads) {
    std::vector<double> logs(heads);
    for (int64_t head = 0; head < heads; ++head) {
      logs[head] = std::log1p(-std::exp2(-5 - static_cast<double>(head)));
    }
    return Tensor::from(logs, {heads});
  }

  Recurrence recur(const Operands& in) override {
    const Shape gates{in.v.shape()[0], in.v.shape()[1], heads_};
    const Tensor& like = in.v.value();
    const Variable zeros(Tensor::zeros(gates, like.dtype(), like.device()));
    const Variable log_decay(log_decay_.to(like.dtype()).to(like.device()));
    const RecurrenceOptions options{.scale = 1 / std::sqrt(static_cast<double>(parts_.key_dim)),
                                    .final_state = in.input.state != nullptr,
                                    .documents = in.input.documents};
    return recurrence(rope(in.q, in.position(), theta_), rope(in.k, in.position(), theta_), in.v, options,
                      add(zeros, log_decay), in.state);
  }

  const double theta_;
  const Tensor log_decay_;  // [H], not trained
};

}  // namespace

MixerKind retention_mixer() {
  return {.name = "retention",
          .summary = "RetNet: linear attention with a fixed decay a head, rotary positions, an output gate",
          .forms = forms,
          .options = {{"key_dim", 0, 0, 1 << 16, true,
                       "size of a head's queries and keys, even: dk; 0: width / heads"},
                      {"value_dim", 0, 0, 1 << 16, true, "size of a head's values: dv; 0: 2 width / heads"},
                      {"theta", 10000, 1, 1e9, false, "base of the rotary frequencies"}},
          .check_options = "key_dim=4,value_dim=3",
          .make = construct<Retention>};
}

}  // namespace mixgrad
