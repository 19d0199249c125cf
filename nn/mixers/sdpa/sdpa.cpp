// Softmax attention: the baseline. Derivation and references in sdpa.md.
#include <optional>

#include "autograd/ops/attention.h"
#include "autograd/ops/concatenate.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/rope.h"
#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {

namespace {

const MixerForms forms{.causal = true,
                       .bidirectional = true,
                       .cross = true,
                       .key_mask = true,
                       .documents = true,
                       .rope = true,
                       .recorded_state = true};

/// The state's tensors are the convolutions' tails, if any, and behind them the cache: stores of keys,
/// values, log decays, if any, and, once documents have been read, where they begin. All stores are [B,
/// capacity, ...].
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
    if (config.option("conv") != 0) {
      declare("q_conv", q_conv_.emplace(width_, initialiser));
      declare("k_conv", k_conv_.emplace(key_heads_ * head_size_, initialiser));
      declare("v_conv", v_conv_.emplace(key_heads_ * head_size_, initialiser));
    }
    if (config.option("qk_norm") != 0) {
      declare_norm("q_norm", q_norm_, initialiser);
      declare_norm("k_norm", k_norm_, initialiser);
    }
    if (config.option("forget") != 0) declare("decay", decay_.emplace(width_, heads_, initialiser));
    if (config.option("gate") != 0) {
      declare("gate", gate_.emplace(width_, width_, false, initialiser));
      declare_norm("norm", norm_, initialiser);
    }
  }

  /// With a window the cache needs room for little more than the window, however long the text.
  MixerState initial_state(int64_t batch, int64_t capacity) const override {
    if (window_ > 0) capacity = std::min(capacity, 2 * window_);
    capacity = std::max<int64_t>(1, capacity);
    const Tensor& like = k_.weight().value();
    const auto store = [&](const Shape& shape) { return Tensor::empty(shape, like.dtype(), like.device()); };
    MixerState state;
    if (q_conv_) {
      state.tensors = {q_conv_->empty_tail(batch), k_conv_->empty_tail(batch), v_conv_->empty_tail(batch)};
    }
    state.tensors.push_back(store({batch, capacity, key_heads_, head_size_}));
    state.tensors.push_back(store({batch, capacity, key_heads_, head_size_}));
    if (decay_) state.tensors.push_back(store({batch, capacity, heads_}));
    return state;
  }

  double flops_per_token(int64_t length) const override {
    const int64_t seen = window_ > 0 ? std::min(window_, length) : length;
    const int64_t convolved = q_conv_ ? width_ + 2 * key_heads_ * head_size_ : 0;
    return 4.0 * static_cast<double>(seen) * static_cast<double>(width_) +
           2.0 * static_cast<double>(ShortConv::taps * convolved);
  }

 protected:
  Variable mix(const MixerInput& input) override {
    for (const auto& [used, name] : {std::pair{window_ > 0, "a window"},
                                     {q_conv_.has_value(), "a convolution"},
                                     {decay_.has_value(), "a forget gate"}}) {
      check_usage(!used || input.causal, "[sdpa] ", name, " needs the causal form");
    }
    const Variable& source = input.context.defined() ? input.context : input.x;
    const Variable q =
        positioned(normalised(project(q_, q_conv_, 0, heads_, input.x, input), q_norm_), input);
    Variable k = positioned(normalised(project(k_, k_conv_, 1, key_heads_, source, input), k_norm_), input);
    Variable v = project(v_, v_conv_, 2, key_heads_, source, input);
    Variable log_decay = decay_ ? decay_->forward(input.x) : Variable();
    AttentionOptions options{.causal = input.causal, .window = window_, .documents = input.documents};
    if (input.state != nullptr) {
      const Tensors cache = extended(*input.state, k.value(), v.value(), log_decay, input.documents);
      k = behind_held(cache[0], k);
      v = behind_held(cache[1], v);
      if (decay_) log_decay = behind_held(cache[2].contiguous(), log_decay);
      if (cache.size() > stores()) options.documents = cache.back().contiguous();
    }
    Variable o = attention(q, k, v, options, input.key_mask, log_decay);  // [B, T, H, d]
    if (gate_) o = gated_rms_norm(o, reshape(gate_->forward(input.x), o.shape()), norm_);
    return out_.forward(reshape(o, input.x.shape()));
  }

 private:
  void declare_norm(const char* name, Variable& norm, Initialiser& initialiser) {
    norm = initialiser.constant({head_size_}, 1);
    declare(name, norm, Decay::no);
  }

  Variable project(const Linear& projection, const std::optional<ShortConv>& conv, int tail, int64_t heads,
                   const Variable& x, const MixerInput& input) const {
    Variable y = projection.forward(x);
    if (conv) {
      y = conv->forward(y, input.state != nullptr ? &input.state->tensors[tail] : nullptr, input.documents);
    }
    return reshape(y, {x.shape()[0], x.shape()[1], heads, head_size_});
  }

  static Variable normalised(const Variable& x, const Variable& norm) {
    return norm.defined() ? rms_norm(x, norm) : x;
  }

  Variable positioned(const Variable& x, const MixerInput& input) const {
    return rope_ ? rope(x, input.state != nullptr ? input.state->position : 0, theta_) : x;
  }

  /// What a cache holds, of which x are the newest tokens: with gradients for these, if they are recorded.
  static Variable behind_held(const Tensor& held, const Variable& x) {
    if (!recording()) return Variable(held);
    return concatenate(Variable(held.narrow(1, 0, held.shape()[1] - x.shape()[1]).contiguous()), x);
  }

  /// Stores of keys, values and log decays, without that of the begins of documents.
  size_t stores() const { return decay_ ? 3 : 2; }

  /// Puts new tokens behind those that the cache holds; returns what it holds now, as views.
  Tensors extended(MixerState& state, const Tensor& k, const Tensor& v, const Variable& log_decay,
                   const Tensor& documents) const {
    const int64_t batch = k.shape()[0], tokens = k.shape()[1];
    const size_t first = q_conv_ ? 3 : 0;
    Tensors added = {k, v};
    if (decay_) added.push_back(log_decay.value());
    const bool kept_begins = state.tensors.size() > first + stores();
    if (documents.defined() && !kept_begins) {
      state.tensors.push_back(
          Tensor::zeros({batch, state.tensors[first].shape()[1]}, DType::int32, k.device()));
    }
    if (documents.defined() || kept_begins) {
      added.push_back(documents.defined() ? documents
                                          : Tensor::zeros({batch, tokens}, DType::int32, k.device()));
    }
    make_room(state, first, tokens);
    Tensors held;
    for (size_t i = 0; i < added.size(); ++i) {
      Tensor& store = state.tensors[first + i];
      store.narrow(1, state.held, tokens).copy_from(added[i]);
      held.push_back(store.narrow(1, 0, state.held + tokens));
    }
    state.held += tokens;
    state.position += tokens;
    return held;
  }

  /// Moves a cache without room for so many tokens to larger stores, leaving behind what the window has
  /// passed.
  void make_room(MixerState& state, size_t first, int64_t tokens) const {
    if (state.held + tokens <= state.tensors[first].shape()[1]) return;
    const int64_t kept = window_ > 0 ? std::min(state.held, window_ - 1) : state.held;
    const int64_t capacity = std::max(kept + tokens, window_ > 0 ? 2 * window_ : 2 * kept);
    for (size_t i = first; i < state.tensors.size(); ++i) {
      Tensor& store = state.tensors[i];
      Shape shape = store.shape();
      shape[1] = capacity;
      Tensor larger = Tensor::empty(shape, store.dtype(), store.device());
      larger.narrow(1, 0, kept).copy_from(store.narrow(1, state.held - kept, kept));
      store = larger;
    }
    state.held = kept;
  }

  const int64_t key_heads_;
  const int64_t head_size_;
  const int64_t window_;
  const double theta_;
  const bool rope_;
  Linear q_, k_, v_, out_;
  std::optional<ShortConv> q_conv_, k_conv_, v_conv_;
  Variable q_norm_, k_norm_;  // [d]
  std::optional<DecayGate> decay_;
  std::optional<Linear> gate_;
  Variable norm_;  // [d]
};

}  // namespace

MixerKind sdpa_mixer() {
  return {.name = "sdpa",
          .summary = "softmax attention; grouped heads, sliding window, rotary positions, KV cache",
          .forms = forms,
          .options =
              {{"kv_heads", 0, 0, 1 << 16, true, "key and value heads; 0: as many as query heads"},
               {"window", 0, 0, 1 << 30, true, "how many tokens back a token sees, itself included; 0: all"},
               {"theta", 10000, 1, 1e9, false, "base of the rotary frequencies"},
               {"qk_norm", 0, 0, 1, true, "1: queries and keys have root mean square 1, but for a weight"},
               {"conv", 0, 0, 1, true, "1: short convolutions behind the projections"},
               {"forget", 0, 0, 1, true, "1: keys lose weight with every token, at rates that these choose"},
               {"gate", 0, 0, 1, true, "1: outputs are normalised and gated"}},
          .check_options = "kv_heads=1,qk_norm=1,gate=1",
          .causal_check_options = {"kv_heads=1,conv=1,forget=1"},
          .make = construct<Sdpa>};
}

}  // namespace mixgrad
