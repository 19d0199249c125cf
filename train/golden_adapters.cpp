// The ops of the golden vectors by our functions.
#include <map>

#include "autograd/learning/chunked.h"
#include "autograd/ops/attention.h"
#include "autograd/ops/conv.h"
#include "autograd/ops/decay_gate.h"
#include "autograd/ops/delta_product.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/gma.h"
#include "autograd/ops/gmm.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/linformer.h"
#include "autograd/ops/longhorn.h"
#include "autograd/ops/mesa.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/performer.h"
#include "autograd/ops/recurrence.h"
#include "autograd/ops/rope.h"
#include "autograd/ops/scan.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/ssd.h"
#include "autograd/ops/ttt_linear.h"
#include "autograd/ops/ttt_mlp.h"
#include "autograd/tape.h"
#include "models/language_model.h"
#include "nn/optimizer.h"
#include "train/golden.h"

namespace mixgrad {

namespace {

/// y = f(x).
template <Variable (*f)(const Variable&)>
void unary(GoldenCase& golden) {
  golden.output("y", f(golden.input("x")));
}

void run_layer_norm(GoldenCase& golden) {
  golden.output("y",
                layer_norm(golden.input("x"), golden.input("w"), golden.input("b"), golden.number("eps")));
}

void run_rms_norm(GoldenCase& golden) {
  golden.output("y", rms_norm(golden.input("x"), golden.input("w"), golden.number("eps")));
}

void run_gated_rms_norm(GoldenCase& golden) {
  const GatedRmsNormOptions options{
      .order = golden.text("order") == "gate_first" ? GateOrder::gate_first : GateOrder::norm_first,
      .function = golden.text("act") == "sigmoid" ? GateFunction::sigmoid : GateFunction::silu,
      .eps = golden.number("eps")};
  golden.output("y", gated_rms_norm(golden.input("x"), golden.input("g"), golden.input("w"), options));
}

void run_l2_normalize(GoldenCase& golden) {
  golden.output("y", l2_normalize(golden.input("x"), golden.number("eps")));
}

void run_swiglu(GoldenCase& golden) { golden.output("y", swiglu(golden.input("a"), golden.input("b"))); }

void run_decay_gate(GoldenCase& golden) {
  golden.output("g", decay_gate(golden.input("a"), golden.input("A_log"), golden.input("dt_bias")));
}

void run_causal_conv1d(GoldenCase& golden) {
  const Convolution got =
      causal_conv1d(golden.input("x"), golden.input("w"), golden.input("b"), golden.input("state0"),
                    {.silu = golden.text("activation") == "silu"});
  golden.output("y", got.output);
  golden.output("state", got.state);
}

void run_linear(GoldenCase& golden) {
  golden.output("y", linear(golden.input("x"), golden.input("W"), golden.input("b")));
}

void run_embedding(GoldenCase& golden) {
  golden.output("y", embedding(golden.integers("ids"), golden.input("W")));
}

void run_cross_entropy(GoldenCase& golden) {
  golden.output("loss", cross_entropy(golden.input("logits"), golden.integers("targets"),
                                      static_cast<int32_t>(golden.number("ignore_index"))));
}

void run_rope(GoldenCase& golden) {
  golden.output("y",
                rope(golden.input("x"), golden.tensor("in.positions", DType::int64), golden.number("theta")));
}

void run_gmm_log_density(GoldenCase& golden) {
  golden.output("logp", gmm_log_density(golden.input("x"), golden.input("mu"), golden.input("sigma2")));
}

void run_gmm_responsibilities(GoldenCase& golden) {
  golden.output("gamma", gmm_responsibilities(golden.input("x"), golden.input("mu"), golden.input("omega"),
                                              golden.input("alpha"), golden.number("floor")));
}

void run_sdpa(GoldenCase& golden) {
  const AttentionOptions options{.causal = golden.flag("causal"),
                                 .window = static_cast<int64_t>(golden.number("window")),
                                 .scale = golden.number("scale")};
  golden.output("o", attention(golden.input("q"), golden.input("k"), golden.input("v"), options,
                               golden.integers("key_mask")));
}

void run_gma(GoldenCase& golden) {
  const Recurrence got =
      gma(golden.input("q"), golden.input("k"), golden.input("v"), golden.input("mu"), golden.input("omega"),
          golden.input("alpha"),
          {.causal = golden.flag("causal"), .eps = golden.number("eps"), .floor = golden.number("floor")},
          golden.integers("key_mask"), golden.input("vt0"), golden.input("z0"));
  golden.output("o", got.output);
  golden.output("vt", got.state);
  golden.output("z", got.normaliser);
}

void run_linear_attention(GoldenCase& golden) {
  const Recurrence got = recurrence(golden.input("q"), golden.input("k"), golden.input("v"),
                                    {.causal = golden.flag("causal"), .scale = golden.number("scale")}, {},
                                    golden.input("state0"));
  golden.output("o", got.output);
  golden.output("state", got.state);
}

void run_linear_attention_norm(GoldenCase& golden) {
  const Tensor key_mask = golden.integers("key_mask");
  Variable k = elu_plus_one(golden.input("k"));
  if (key_mask.defined()) k = mask_rows(k, key_mask);
  const Recurrence got =
      recurrence(elu_plus_one(golden.input("q")), k, golden.input("v"),
                 {.causal = golden.flag("causal"), .normalise = true, .eps = golden.number("eps")}, {},
                 golden.input("s0"), golden.input("z0"));
  golden.output("o", got.output);
  golden.output("s", got.state);
  golden.output("z", got.normaliser);
}

/// Retention has one log decay a head, g [H]; the scalar gate one a token, g [B, T, H].
void run_gated(GoldenCase& golden) {
  const Variable v = golden.input("v");
  const Shape gate{v.shape()[0], v.shape()[1], v.shape()[2]};
  const Variable zero(Tensor::zeros(gate, golden.dtype(), golden.device()));
  const Recurrence got =
      recurrence(golden.input("q"), golden.input("k"), v, {.scale = golden.number("scale")},
                 add(golden.input("g"), zero), golden.input("state0"));
  golden.output("o", got.output);
  golden.output("state", got.state);
}

void run_performer_features(GoldenCase& golden) {
  golden.output("phi", performer_features(golden.input("x"), golden.input("W"), golden.number("feat_eps")));
}

void run_performer(GoldenCase& golden) {
  const Variable W = golden.input("W");
  const auto features = [&](const char* name) {
    return performer_features(golden.input(name), W, golden.number("feat_eps"));
  };
  const Recurrence got =
      recurrence(features("q"), features("k"), golden.input("v"),
                 {.causal = golden.flag("causal"), .normalise = true, .eps = golden.number("eps")}, {},
                 golden.input("s0"), golden.input("z0"));
  golden.output("o", got.output);
  golden.output("s", got.state);
  golden.output("z", got.normaliser);
}

void run_linformer(GoldenCase& golden) {
  golden.output("o", linformer(golden.input("q"), golden.input("k"), golden.input("v"), golden.input("E"),
                               golden.input("F"), golden.number("scale"), golden.integers("key_mask")));
}

void run_mamba2_ssd(GoldenCase& golden) {
  const Variable dt = golden.input("dt");
  const Recurrence got = ssd(golden.input("x"), dt, multiply(dt, golden.input("A")), golden.input("B"),
                             golden.input("C"), golden.input("D"), {}, golden.input("state0"));
  golden.output("y", got.output);
  golden.output("state", got.state);
}

void run_selective_scan(GoldenCase& golden) {
  const Scan got =
      selective_scan(golden.input("u"), golden.input("delta"), golden.input("A"), golden.input("B"),
                     golden.input("C"), golden.input("D"), golden.input("h0"));
  golden.output("y", got.output);
  golden.output("h", got.state);
}

/// A gate for each channel.
void run_gla(GoldenCase& golden) {
  const Recurrence got =
      recurrence(golden.input("q"), golden.input("k"), golden.input("v"), {.scale = golden.number("scale")},
                 golden.input("g"), golden.input("state0"));
  golden.output("o", got.output);
  golden.output("state", got.state);
}

/// The delta rule without a gate, with one for each head, and with one for each channel.
void run_delta_rule(GoldenCase& golden) {
  const Recurrence got =
      delta_rule(golden.input("q"), golden.input("k"), golden.input("v"), golden.input("beta"),
                 {.scale = golden.number("scale")}, golden.input("g"), golden.input("state0"));
  golden.output("o", got.output);
  golden.output("state", got.state);
}

void run_delta_product(GoldenCase& golden) {
  const Recurrence got =
      delta_product(golden.input("q"), golden.input("k"), golden.input("v"), golden.input("beta"),
                    {.scale = golden.number("scale")}, golden.input("g"), golden.input("state0"));
  golden.output("o", got.output);
  golden.output("state", got.state);
}

void run_longhorn(GoldenCase& golden) {
  const Recurrence got =
      longhorn(golden.input("q"), golden.input("k"), golden.input("v"), golden.input("beta"),
               {.scale = golden.number("scale")}, golden.input("state0"));
  golden.output("o", got.output);
  golden.output("state", got.state);
}

void run_mesanet(GoldenCase& golden) {
  const Mesa got =
      mesa(golden.input("q"), golden.input("k"), golden.input("v"), golden.input("g"), golden.input("beta"),
           golden.input("lam"), {}, golden.input("h0"), golden.input("b0"));
  golden.output("o", got.output);
  golden.output("h", got.key_state);
  golden.output("b", got.value_state);
}

/// Of given rank, and so of each sequence, or else the same one for all.
Variable initial_state(const Variable& given, int64_t batch, int rank) {
  return given.shape().rank() == rank ? given : repeated(given, batch);
}

/// o = q + norm(z) (.) gamma + beta, of what test-time training gives for the queries.
Variable normed_read(GoldenCase& golden, const Variable& q, const Variable& z, const Variable& gamma,
                     const Variable& beta) {
  return add(q, add(multiply(layer_norm(z, {}, {}, golden.number("eps")), gamma), beta));
}

void run_ttt_linear(GoldenCase& golden) {
  const Variable q = golden.input("q"), gamma = golden.input("gamma"), beta = golden.input("beta");
  const int64_t batch = q.shape()[0];
  const TttLinear got = ttt_linear(
      q, golden.input("k"), golden.input("v"), golden.input("lr"), gamma, beta, golden.input("row"),
      initial_state(golden.input("w0"), batch, 4), initial_state(golden.input("b0"), batch, 3),
      {.mini_batch = static_cast<int64_t>(golden.number("mini_batch")), .eps = golden.number("eps")});
  golden.output("o", normed_read(golden, q, got.output, gamma, beta));
  golden.output("w", got.weight);
  golden.output("b", got.bias);
}

void run_ttt_mlp(GoldenCase& golden) {
  const Variable q = golden.input("q"), gamma = golden.input("gamma"), beta = golden.input("beta");
  const int64_t batch = q.shape()[0];
  const TttNetwork network{
      initial_state(golden.input("w1"), batch, 4), initial_state(golden.input("b1"), batch, 3),
      initial_state(golden.input("w2"), batch, 4), initial_state(golden.input("b2"), batch, 3)};
  const TttMlp got = ttt_mlp(
      q, golden.input("k"), golden.input("v"), golden.input("lr"), gamma, beta, golden.input("row"), network,
      {.mini_batch = static_cast<int64_t>(golden.number("mini_batch")), .eps = golden.number("eps")});
  golden.output("o", normed_read(golden, q, got.output, gamma, beta));
  golden.output("w1", got.network.weight1);
  golden.output("b1", got.network.bias1);
  golden.output("w2", got.network.weight2);
  golden.output("b2", got.network.bias2);
}

/// Unit vectors [batch, size, 1, size].
Variable unit_vectors(const GoldenCase& golden, int64_t batch, int64_t size) {
  std::vector<double> values(batch * size * size, 0);
  for (int64_t i = 0; i < batch * size; ++i) values[i * size + i % size] = 1;
  return Variable(Tensor::from(values, {batch, size, 1, size}).to(golden.dtype()).to(golden.device()));
}

/// [B, H, m, n] with its last axes exchanged, as a recurrence that writes unit vectors under the rows.
Variable transposed(const GoldenCase& golden, const Variable& x) {
  const Shape s = x.shape();
  const int64_t batch = s[0] * s[1];
  const Variable rows = reshape(x, {batch, s[2], 1, s[3]});
  const Variable turned =
      recurrence(unit_vectors(golden, batch, s[3]), rows, unit_vectors(golden, batch, s[2]),
                 {.causal = false, .final_state = false})
          .output;
  return reshape(turned, {s[0], s[1], s[3], s[2]});
}

void run_longhorn_diag(GoldenCase& golden) {
  const Variable q = golden.input("q"), v = golden.input("v");
  const int64_t batch = q.shape()[0], heads = v.shape()[2], dk = q.shape()[3], dv = v.shape()[3];
  Variable state = golden.input("state0");
  if (state.defined()) state = reshape(transposed(golden, state), {batch, heads * dv, dk});
  const Scan got =
      longhorn_diagonal(q, golden.input("k"), v, golden.input("beta"), golden.number("scale"), state);
  golden.output("o", got.output);
  golden.output("state", transposed(golden, reshape(got.state, {batch, heads, dv, dk})));
}

/// Entry t along the first axis, as a view.
Tensor entry(const Tensor& tensor, int64_t t, const Shape& shape) {
  return tensor.narrow(0, t, 1).reshape(shape);
}

void run_adamw(GoldenCase& golden) {
  Variable p(golden.tensor("in.p", golden.dtype()), true);
  const Tensor gradients = golden.tensor("in.g", golden.dtype());
  const std::vector<double> rates = golden.tensor("in.lr", DType::float64).to_vector();
  AdamW optimizer({{"p", &p, true}}, {.beta1 = golden.number("beta1"),
                                      .beta2 = golden.number("beta2"),
                                      .epsilon = golden.number("eps"),
                                      .weight_decay = golden.number("weight_decay")});
  Tensor after_each = empty_like(gradients);
  for (int64_t t = 0; t < gradients.shape()[0]; ++t) {
    p.grad() = entry(gradients, t, p.shape());
    optimizer.step(rates[t]);
    entry(after_each, t, p.shape()).copy_from(p.value());
  }
  golden.compare("out.p", after_each);
  for (const auto& [name, moment] : optimizer.state()) golden.compare("out." + name.substr(0, 1), moment);
}

void run_clip_grad_norm(GoldenCase& golden) {
  std::vector<Variable> variables;
  const std::vector<std::string> names = golden.input_names();
  for (const std::string& name : names) {
    const Tensor gradient = golden.tensor("in." + name, golden.dtype());
    variables.emplace_back(zeros_like(gradient), true);
    variables.back().grad() = gradient;
  }
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < names.size(); ++i) parameters.push_back({names[i], &variables[i], true});

  const double norm = gradient_norm(parameters);
  const double factor = clip_scale(norm, golden.number("max_norm"), golden.number("eps"));
  golden.compare("out.norm", Tensor::full({}, norm, DType::float64));
  for (const Parameter& parameter : parameters) {
    golden.compare("out." + parameter.name, scale(Variable(parameter.variable->grad()), factor).value());
  }
}

void run_cosine_schedule(GoldenCase& golden) {
  const CosineSchedule schedule{.peak = golden.number("peak"),
                                .minimum = golden.number("min"),
                                .warmup_steps = static_cast<int64_t>(golden.number("warmup")),
                                .total_steps = static_cast<int64_t>(golden.number("total"))};
  std::vector<double> rates(static_cast<size_t>(golden.number("n")));
  for (size_t t = 0; t < rates.size(); ++t) rates[t] = schedule.rate(static_cast<int64_t>(t));
  golden.compare("out.lr", Tensor::from(rates, {static_cast<int64_t>(rates.size())}));
}

/// Our name of a parameter of the golden language models: "layers.0.wq" is "blocks.0.mixer.q.weight".
std::string our_name(const std::string& golden_name) {
  static const std::map<std::string, std::string> names = {
      {"tok_emb", "tokens.weight"},
      {"pos_emb", "positions.weight"},
      {"norm_f.w", "final_norm.weight"},
      {"norm_f.b", "final_norm.bias"},
      {"head", "head.weight"},
      {"norm1.w", "mixer_norm.weight"},
      {"norm1.b", "mixer_norm.bias"},
      {"norm2.w", "mlp_norm.weight"},
      {"norm2.b", "mlp_norm.bias"},
      {"wq", "mixer.q.weight"},
      {"wk", "mixer.k.weight"},
      {"wv", "mixer.v.weight"},
      {"wo", "mixer.out.weight"},
      {"mu", "mixer.mean"},
      {"omega", "mixer.omega"},
      {"alpha", "mixer.alpha"},
      {"w1", "mlp.up.weight"},
      {"b1", "mlp.up.bias"},
      {"w2", "mlp.down.weight"},
      {"b2", "mlp.down.bias"},
      {"wg", "mixer.gate.weight"},
      {"wb", "mixer.beta.weight"},
      {"wa", "mixer.decay.weight"},
      {"A_log", "mixer.decay.A_log"},
      {"dt_bias", "mixer.decay.dt_bias"},
      {"onorm.w", "mixer.norm"},
      {"conv_q", "mixer.q_conv.weight"},
      {"conv_k", "mixer.k_conv.weight"},
      {"conv_v", "mixer.v_conv.weight"},
  };
  constexpr std::string_view layer = "layers.0.";
  if (!golden_name.starts_with("layers.")) return names.at(golden_name);
  return "blocks." + golden_name.substr(7, 2) + names.at(golden_name.substr(layer.size()));
}

/// In what the golden language models differ.
struct GoldenTrunk {
  std::string pattern;
  std::string positions = "learned";
  std::string norm = "layer";
};

/// A language model of the golden vectors' architecture and parameters.
class GoldenModel {
 public:
  GoldenModel(const GoldenCase& golden, const GoldenTrunk& trunk)
      : initialiser_(golden.dtype(), golden.device(), generator_),
        model_({.vocabulary = 17,
                .layers = 2,
                .heads = 2,
                .width = 16,
                .context = 16,
                .mlp_hidden = 64,
                .pattern = trunk.pattern,
                .positions = trunk.positions,
                .norm = trunk.norm,
                .bias = true,
                .tie_embeddings = false},
               initialiser_),
        ids_(golden.integers("ids")),
        targets_(golden.integers("targets")) {
    std::map<std::string, Variable*> ours;
    for (const Parameter& parameter : model_.parameters()) ours[parameter.name] = parameter.variable;
    for (const std::string& name : golden.input_names()) {
      if (name == "ids" || name == "targets") continue;
      Variable* parameter = ours.at(our_name(name));
      parameter->value().copy_from(golden.tensor("in." + name, golden.dtype()));
      parameters_[name] = parameter;
    }
    check(parameters_.size() == ours.size(), "the file has ", parameters_.size(), " parameters, the model ",
          ours.size());
  }

  /// Leaves the gradients to the case's backward pass.
  void run_loss(GoldenCase& golden) {
    const Variable logits = model_.logits(ids_);
    golden.output("logits", logits);
    golden.output("loss", cross_entropy(logits, targets_));
    for (const auto& [name, parameter] : parameters_) golden.leaf(name, *parameter);
  }

  /// Three AdamW steps; compares losses and parameters, named with the prefix.
  void check_training(GoldenCase& golden, double weight_decay, const std::string& prefix) {
    AdamW optimizer(model_.parameters(), {.beta1 = golden.number("beta1"),
                                          .beta2 = golden.number("beta2"),
                                          .epsilon = golden.number("opt_eps"),
                                          .weight_decay = weight_decay});
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      const Variable loss = model_.loss(ids_, targets_);
      losses.push_back(loss.value().item());
      model_.zero_grad();
      backward(loss);
      optimizer.step(golden.number("lr"));
    }
    losses.push_back(model_.loss(ids_, targets_).value().item());
    golden.compare(prefix + ".losses", Tensor::from(losses, {4}));
    for (const auto& [name, parameter] : parameters_) golden.compare(prefix + "." + name, parameter->value());
  }

 private:
  Generator generator_;
  Initialiser initialiser_;
  LanguageModel model_;
  Tensor ids_, targets_;
  std::map<std::string, Variable*> parameters_;  // of the model, by their golden names
};

void run_language_model(GoldenCase& golden, const GoldenTrunk& trunk) {
  GoldenModel(golden, trunk).run_loss(golden);
  GoldenModel(golden, trunk).check_training(golden, 0, "after3");
  GoldenModel(golden, trunk).check_training(golden, golden.number("weight_decay"), "after3wd");
}

void run_sdpa_model(GoldenCase& golden) { run_language_model(golden, {.pattern = "sdpa"}); }
void run_gma_model(GoldenCase& golden) {
  run_language_model(golden, {.pattern = "gma(components=5,routing=4,normalise=0)"});
}
void run_gated_delta_model(GoldenCase& golden) {
  run_language_model(golden,
                     {.pattern = "gated_delta(key_dim=6,value_dim=10)", .positions = "none", .norm = "rms"});
}

}  // namespace

const std::vector<GoldenAdapter>& golden_adapters() {
  static const std::vector<GoldenAdapter> adapters = {
      {"softplus", unary<softplus>},
      {"sigmoid", unary<sigmoid>},
      {"log_sigmoid", unary<log_sigmoid>},
      {"silu", unary<silu>},
      {"gelu_tanh", unary<gelu_tanh>},
      {"gelu_erf", unary<gelu_erf>},
      {"softmax", unary<softmax>},
      {"log_softmax", unary<log_softmax>},
      {"logsumexp", unary<logsumexp>},
      {"layer_norm", run_layer_norm},
      {"rms_norm", run_rms_norm},
      {"gated_rms_norm", run_gated_rms_norm},
      {"l2_normalize", run_l2_normalize},
      {"swiglu", run_swiglu},
      {"decay_gate", run_decay_gate},
      {"causal_conv1d", run_causal_conv1d},
      {"linear", run_linear},
      {"embedding", run_embedding},
      {"cross_entropy", run_cross_entropy},
      {"rope", run_rope},
      {"gmm_log_density", run_gmm_log_density},
      {"gmm_responsibilities", run_gmm_responsibilities},
      {"sdpa", run_sdpa},
      {"gma", run_gma},
      {"linear_attention", run_linear_attention},
      {"linear_attention_norm", run_linear_attention_norm},
      {"performer_features", run_performer_features},
      {"performer", run_performer},
      {"linformer", run_linformer},
      {"mamba2_ssd", run_mamba2_ssd},
      {"retention", run_gated},
      {"scalar_gate", run_gated},
      {"selective_scan", run_selective_scan},
      {"gla", run_gla},
      {"delta_rule", run_delta_rule},
      {"gated_delta_rule", run_delta_rule},
      {"kda", run_delta_rule},
      {"delta_product", run_delta_product},
      {"longhorn", run_longhorn},
      {"longhorn_diag", run_longhorn_diag},
      {"mesanet", run_mesanet},
      {"ttt_linear", run_ttt_linear},
      {"ttt_mlp", run_ttt_mlp},
      {"adamw", run_adamw},
      {"clip_grad_norm", run_clip_grad_norm},
      {"cosine_schedule", run_cosine_schedule},
      {"lm/sdpa", run_sdpa_model},
      {"lm/gma", run_gma_model},
      {"lm/gated_delta_rule", run_gated_delta_model},
  };
  return adapters;
}

}  // namespace mixgrad
