// MesaNet: at every token the regression that fits all values so far best. Derivation in mesa.md.
#include "autograd/ops/mesa.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/norm.h"
#include "nn/layers.h"
#include "nn/mixer.h"

namespace mixgrad {

namespace {

const MixerForms forms{.causal = true, .documents = true};

constexpr double first_ridge = 1;  // lambda at the start

int64_t head_size(const MixerConfig& config, const std::string& option) {
  const int64_t given = config.integer_option(option);
  return given == 0 ? config.width / config.heads : given;
}

/// Decodes with dk (dk + dv) numbers a head, and the last three tokens of two convolutions.
class MesaMixer final : public Mixer {
 public:
  MesaMixer(const MixerConfig& config, Initialiser& initialiser)
      : Mixer(config, "mesa", forms),
        key_dim_(head_size(config, "key_dim")),
        value_dim_(head_size(config, "value_dim")),
        least_ridge_(config.option("ridge")),
        q_(width_, heads_ * key_dim_, false, initialiser),
        k_(width_, heads_ * key_dim_, false, initialiser),
        v_(width_, heads_ * value_dim_, false, initialiser),
        beta_(width_, heads_, true, initialiser),
        q_conv_(heads_ * key_dim_, initialiser),
        k_conv_(heads_ * key_dim_, initialiser),
        decay_(width_, heads_, initialiser),
        out_(heads_ * value_dim_, width_, false, initialiser),
        ridge_(initialiser.constant({heads_, key_dim_}, inverse_softplus(first_ridge - least_ridge_))),
        norm_(initialiser.constant({value_dim_}, 1)) {
    declare("q", q_);
    declare("k", k_);
    declare("v", v_);
    declare("beta", beta_);
    declare("q_conv", q_conv_);
    declare("k_conv", k_conv_);
    declare("decay", decay_);
    declare("out", out_);
    declare("ridge", ridge_, Decay::no);
    declare("norm", norm_, Decay::no);
  }

  MixerState initial_state(int64_t batch, int64_t) const override {
    const auto zeros = [&](int64_t columns) {
      const Tensor& like = norm_.value();
      return Tensor::zeros({batch, heads_, key_dim_, columns}, like.dtype(), like.device());
    };
    MixerState state;
    state.tensors = {zeros(key_dim_), zeros(value_dim_), q_conv_.empty_tail(batch),
                     k_conv_.empty_tail(batch)};
    return state;
  }

  double flops_per_token(int64_t) const override {
    // Two writes and a read; convolutions; and in each round of the solve a product with the matrix and the
    // updates of three vectors.
    constexpr double rounds = 14;  // the most that float took for random keys, see mesa.md
    const auto keys = static_cast<double>(heads_ * key_dim_), dk = static_cast<double>(key_dim_);
    const auto dv = static_cast<double>(value_dim_);
    return keys * (2 * dk + 4 * dv + 4 * ShortConv::taps + rounds * (2 * dk + 11));
  }

 protected:
  Variable mix(const MixerInput& input) override {
    const Variable& x = input.x;
    const int64_t batch = x.shape()[0], length = x.shape()[1];
    MixerState* state = input.state;
    const auto tensor = [&](int index) { return state != nullptr ? &state->tensors[index] : nullptr; };
    const auto unit = [&](const Variable& convolved) {  // heads of length 1
      return l2_normalize(reshape(convolved, {batch, length, heads_, key_dim_}));
    };
    const Variable q = unit(q_conv_.forward(q_.forward(x), tensor(2), input.documents));
    const Variable k = unit(k_conv_.forward(k_.forward(x), tensor(3), input.documents));
    const Variable v = reshape(v_.forward(x), {batch, length, heads_, value_dim_});
    const Variable beta = sigmoid(beta_.forward(x));  // [B, T, H]
    const Variable lambda = add_scalar(softplus(ridge_), least_ridge_);
    const auto matrix = [&](int index) { return state != nullptr ? Variable(*tensor(index)) : Variable(); };
    const Mesa read =
        mesa(q, k, v, decay_.forward(x), beta, lambda,
             {.final_state = state != nullptr, .documents = input.documents}, matrix(0), matrix(1));
    if (state != nullptr) {
      *tensor(0) = read.key_state.value();
      *tensor(1) = read.value_state.value();
      state->position += length;
    }
    return out_.forward(reshape(rms_norm(read.output, norm_), {batch, length, heads_ * value_dim_}));
  }

 private:
  static double inverse_softplus(double y) { return std::log(std::expm1(y)); }

  const int64_t key_dim_;    // dk
  const int64_t value_dim_;  // dv
  const double least_ridge_;
  Linear q_, k_, v_, beta_;
  ShortConv q_conv_, k_conv_;
  DecayGate decay_;
  Linear out_;
  Variable ridge_, norm_;
};

}  // namespace

MixerKind mesa_mixer() {
  return {
      .name = "mesa",
      .summary = "MesaNet: at every token the best fit to all values so far, exactly",
      .forms = forms,
      .options = {{"key_dim", 0, 0, 1 << 16, true, "size of a head's queries and keys: dk; 0: width / heads"},
                  {"value_dim", 0, 0, 1 << 16, true, "size of a head's values: dv; 0: width / heads"},
                  {"ridge", 0.25, 1e-3, 0.999, false,
                   "the least that a direction of the keys is held back by; it starts at 1 and is learned"}},
      .check_options = "key_dim=3,value_dim=5",
      .make = construct<MesaMixer>};
}

}  // namespace mixgrad
