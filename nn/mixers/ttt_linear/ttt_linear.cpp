// TTT-Linear: a linear layer that learns from the text while it is read. Derivation in ttt_linear.md.
#include "autograd/learning/chunked.h"
#include "nn/mixers/ttt_linear/ttt.h"

namespace mixgrad {

namespace {

/// Decodes with d (d + 1) numbers a head, and the keys, values and rates of a mini-batch.
class TttLinearMixer final : public TttMixer {
 public:
  TttLinearMixer(const MixerConfig& config, Initialiser& initialiser)
      : TttMixer(config, "ttt_linear", initialiser),
        weight_(initialiser.normal({heads_, head_size_, head_size_}, 0.02)),
        bias_(initialiser.constant({heads_, head_size_}, 0)) {
    declare("weight", weight_, Decay::no);
    declare("bias", bias_, Decay::no);
  }

  double flops_per_token(int64_t) const override {
    // The answer to the key, the read and the write; and Gram matrix and errors of a mini-batch.
    return static_cast<double>(width_) * static_cast<double>(6 * head_size_ + 4 * options_.mini_batch);
  }

 protected:
  Variable read(const Tokens& t, const Variable& row) override {
    const int64_t batch = t.q.shape()[0];
    return ttt_linear(t.q, t.k, t.v, t.rate, gamma_, beta_, row, repeated(weight_, batch),
                      repeated(bias_, batch), options_)
        .output;
  }

  Tensor read_on(const Tokens& t, const Variable& row, MixerState& state) override {
    return ttt_linear_read_on(t.q.value(), t.k.value(), t.v.value(), t.rate.value(), gamma_.value(),
                              beta_.value(), row.value(), options_, state.position, state.tensors);
  }

  Tensors first_network(int64_t batch) const override {
    return {repeated(weight_, batch).value(),
            repeated(bias_, batch).value().reshape({batch, heads_, 1, head_size_})};
  }

 private:
  Variable weight_, bias_;  // before the first token
};

}  // namespace

MixerKind ttt_linear_mixer() {
  return {.name = "ttt_linear",
          .summary = "TTT-Linear: a linear layer a head that learns from the text while it is read",
          .forms = {.causal = true},
          .options = ttt_options(),
          .check_options = "mini_batch=4",
          .make = construct<TttLinearMixer>};
}

}  // namespace mixgrad
