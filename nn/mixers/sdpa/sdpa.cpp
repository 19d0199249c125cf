// Softmax attention: the baseline. Derivation and references in sdpa.md.
#include "autograd/ops/attention.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/rope.h"
#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {

namespace {

const MixerForms forms{.causal = true, .bidirectional = true, .cross = true, .key_mask = true, .rope = true};

class Sdpa final : public Mixer {
 public:
  Sdpa(const MixerConfig& config, Initialiser& initialiser)
      : Mixer(config, "sdpa", forms),
        key_heads_(config.group_option("sdpa", "kv_heads")),
        head_size_(config.width / config.heads),
        window_(config.integer_option("window")),
        theta_(config.option("theta")),
        rope_(config.rope),
        q_(config.width, config.width, false, initialiser),
        k_(config.width, key_heads_ * head_size_, false, initialiser),
        v_(config.width, key_heads_ * head_size_, false, initialiser),
        out_(config.width, config.width, false, initialiser) {
    check_usage(!rope_ || head_size_ % 2 == 0, "[sdpa] rotary positions turn pairs: the head size ",
                head_size_, " (width / heads) must be even");
    declare("q", q_);
    declare("k", k_);
    declare("v", v_);
    declare("out", out_);
  }

  /// An empty KV cache. With a window it needs room for little more than the window, however long the text.
  MixerState initial_state(int64_t batch, int64_t capacity) const override {
    if (window_ > 0) capacity = std::min(capacity, 2 * window_);
    MixerState state;
    state.tensors = {make_store(batch, std::max<int64_t>(1, capacity)),
                     make_store(batch, std::max<int64_t>(1, capacity))};
    return state;
  }

  double flops_per_token(int64_t length) const override {
    const int64_t seen = window_ > 0 ? std::min(window_, length) : length;
    return 4.0 * static_cast<double>(seen) * static_cast<double>(width_);
  }

 protected:
  Variable mix(const MixerInput& input) override {
    check_usage(window_ == 0 || input.causal, "[sdpa] a window needs the causal form");
    const Variable& source = input.context.defined() ? input.context : input.x;
    const int64_t position = input.state != nullptr ? input.state->position : 0;
    Variable q = heads(q_.forward(input.x), heads_);     // [B, T, H, d]
    Variable k = heads(k_.forward(source), key_heads_);  // [B, Tk, Hkv, d]
    Variable v = heads(v_.forward(source), key_heads_);
    if (rope_) {
      q = rope(q, position, theta_);
      k = rope(k, position, theta_);
    }
    if (input.state != nullptr) {
      append(*input.state, k.value(), v.value());
      k = Variable(input.state->tensors[0].narrow(1, 0, input.state->held));
      v = Variable(input.state->tensors[1].narrow(1, 0, input.state->held));
    }
    const AttentionOptions options{.causal = input.causal, .window = window_};
    const Variable o = attention(q, k, v, options, input.key_mask);
    return out_.forward(reshape(o, input.x.shape()));
  }

 private:
  Variable heads(const Variable& x, int64_t count) const {
    return reshape(x, {x.shape()[0], x.shape()[1], count, head_size_});
  }

  /// Room for keys or values: [B, capacity, Hkv, d].
  Tensor make_store(int64_t batch, int64_t capacity) const {
    const Tensor& like = k_.weight().value();
    return Tensor::empty({batch, capacity, key_heads_, head_size_}, like.dtype(), like.device());
  }

  /// Puts new keys and values behind those that the cache holds; a full cache moves to a larger store,
  /// leaving behind what the window has passed.
  void append(MixerState& state, const Tensor& k, const Tensor& v) const {
    const int64_t batch = k.shape()[0], tokens = k.shape()[1];
    if (state.held + tokens > state.tensors[0].shape()[1]) {
      const int64_t kept = window_ > 0 ? std::min(state.held, window_ - 1) : state.held;
      const int64_t capacity = std::max(kept + tokens, window_ > 0 ? 2 * window_ : 2 * kept);
      for (Tensor& store : state.tensors) {
        Tensor larger = make_store(batch, capacity);
        larger.narrow(1, 0, kept).copy_from(store.narrow(1, state.held - kept, kept));
        store = larger;
      }
      state.held = kept;
    }
    state.tensors[0].narrow(1, state.held, tokens).copy_from(k);
    state.tensors[1].narrow(1, state.held, tokens).copy_from(v);
    state.held += tokens;
    state.position += tokens;
  }

  int64_t key_heads_;
  int64_t head_size_;
  int64_t window_;
  double theta_;
  bool rope_;
  Linear q_, k_, v_, out_;
};

}  // namespace

MixerKind sdpa_mixer() {
  return {.name = "sdpa",
          .summary = "softmax attention; grouped heads, sliding window, rotary positions, KV cache",
          .forms = forms,
          .options = {{"kv_heads", 0, 0, 1 << 16, true, "key and value heads; 0: as many as query heads"},
                      {"window", 0, 0, 1 << 30, true,
                       "how many tokens back a token sees, itself included; 0: all"},
                      {"theta", 10000, 1, 1e9, false, "base of the rotary frequencies"}},
          .check_options = "kv_heads=1",
          .make = construct<Sdpa>};
}

}  // namespace mixgrad
