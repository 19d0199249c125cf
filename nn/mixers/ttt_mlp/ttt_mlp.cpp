// TTT-MLP: a network of two layers that learns from the text while it is read. Derivation in ttt_mlp.md.
#include "autograd/ops/ttt_mlp.h"

#include "autograd/learning/chunked.h"
#include "nn/mixers/ttt_linear/ttt.h"

namespace mixgrad {

namespace {

/// Decodes with F (2 d + 1) + d numbers a head, and the keys, values and rates of a mini-batch.
class TttMlpMixer final : public TttMixer {
 public:
  TttMlpMixer(const MixerConfig& config, Initialiser& initialiser)
      : TttMixer(config, "ttt_mlp", initialiser),
        hidden_(config.integer_option("expansion") * head_size_),
        weight1_(initialiser.normal({heads_, head_size_, hidden_}, 0.02)),
        bias1_(initialiser.constant({heads_, hidden_}, 0)),
        weight2_(initialiser.normal({heads_, hidden_, head_size_}, 0.02)),
        bias2_(initialiser.constant({heads_, head_size_}, 0)) {
    declare("weight1", weight1_, Decay::no);
    declare("bias1", bias1_, Decay::no);
    declare("weight2", weight2_, Decay::no);
    declare("bias2", bias2_, Decay::no);
  }

  double flops_per_token(int64_t) const override {
    // Both layers: answers to the key, errors backwards, reads and writes; Gram matrices and errors of a
    // mini-batch.
    const auto d = static_cast<double>(head_size_), hidden = static_cast<double>(hidden_);
    const auto tokens = static_cast<double>(options_.mini_batch);
    return static_cast<double>(heads_) * (14 * d * hidden + 4 * tokens * (d + hidden));
  }

 protected:
  Variable read(const Tokens& t, const Variable& row) override {
    const int64_t batch = t.q.shape()[0];
    const TttNetwork network{repeated(weight1_, batch), repeated(bias1_, batch), repeated(weight2_, batch),
                             repeated(bias2_, batch)};
    return ttt_mlp(t.q, t.k, t.v, t.rate, gamma_, beta_, row, network, options_).output;
  }

  Tensor read_on(const Tokens& t, const Variable& row, MixerState& state) override {
    return ttt_mlp_read_on(t.q.value(), t.k.value(), t.v.value(), t.rate.value(), gamma_.value(),
                           beta_.value(), row.value(), options_, state.position, state.tensors);
  }

  Tensors first_network(int64_t batch) const override {
    return {repeated(weight1_, batch).value(),
            repeated(bias1_, batch).value().reshape({batch, heads_, 1, hidden_}),
            repeated(weight2_, batch).value(),
            repeated(bias2_, batch).value().reshape({batch, heads_, 1, head_size_})};
  }

 private:
  const int64_t hidden_;                        // F
  Variable weight1_, bias1_, weight2_, bias2_;  // before the first token
};

std::vector<MixerOption> options() {
  std::vector<MixerOption> all = ttt_options();
  all.push_back({"expansion", 4, 1, 64, true, "hidden units for each number of a head"});
  return all;
}

}  // namespace

MixerKind ttt_mlp_mixer() {
  return {.name = "ttt_mlp",
          .summary = "TTT-MLP: a network of two layers a head that learns from the text while it is read",
          .forms = {.causal = true},
          .options = options(),
          .check_options = "mini_batch=4,expansion=2",
          .make = construct<TttMlpMixer>};
}

}  // namespace mixgrad
