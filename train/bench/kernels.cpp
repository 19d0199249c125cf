#include "train/bench/kernels.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "autograd/ops/attention.h"
#include "autograd/ops/conv.h"
#include "autograd/ops/decay_gate.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/gmm.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/longhorn.h"
#include "autograd/ops/mesa.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/recurrence.h"
#include "autograd/ops/rope.h"
#include "autograd/ops/scan.h"
#include "autograd/ops/softmax.h"
#include "autograd/profile.h"
#include "autograd/tape.h"
#include "nn/optimizer.h"
#include "tensor/error.h"
#include "train/options.h"

namespace mixgrad {

namespace {

using Inputs = std::vector<Variable>;

/// One function of ops. An undefined output stands for something that has no backward pass.
struct KernelCase {
  std::string name;
  Inputs inputs;
  std::function<Variable(Inputs&)> output;
  double flops = 0;  // forward, where arithmetic may bound it
  double bytes = 0;  // beyond those of inputs and output
};

/// Variables of the sizes that a model has.
class Operands {
 public:
  Operands(const KernelsOptions& options, Device device) : o(options), device_(device) {}

  Variable normal(const Shape& shape) {
    return Variable(mixgrad::normal(shape, 1, generator, DType::float32, device_), true);
  }
  Variable between(double low, double high, const Shape& shape) {
    return Variable(uniform(shape, low, high, generator, DType::float32, device_), true);
  }
  Tensor integers(int64_t below, const Shape& shape) {
    std::vector<int32_t> values(shape.elements());
    for (int32_t& value : values)
      value = static_cast<int32_t>(generator.uniform() * static_cast<double>(below));
    return Tensor::from(values, shape, device_);
  }

  const KernelsOptions o;
  const int64_t rows = o.batch * o.context, head_size = o.width / o.heads;
  Generator generator{1};

 private:
  Device device_;
};

/// All cases: a line each, or a few.
std::vector<KernelCase> kernel_cases(const KernelsOptions& options, Device device) {
  Operands make(options, device);
  const KernelsOptions& o = make.o;
  const int64_t B = o.batch, T = o.context, D = o.width, H = o.heads, d = make.head_size, K = o.components;
  const Shape hidden{make.rows, 4 * D}, tokens{B, T, D}, heads{B, T, H, d}, scalars{B, T, H}, vector{D};
  const Shape logits{make.rows, o.vocabulary};
  const auto N = static_cast<double>(make.rows);
  const double state = N * static_cast<double>(H * d * d);  // multiply-adds of one pass over a head's state
  const double pairs = N * static_cast<double>((T + 1) * H) / 2;  // of a query and a key that it sees
  const double densities = N * static_cast<double>(H * K * o.routing);

  const double weight_bytes = sizeof(float) * static_cast<double>(hidden.elements());
  const auto optimizer = [&] {
    const auto weight = std::make_shared<Variable>(make.between(-1, 1, hidden));
    weight->grad() = weight->value().clone();
    const std::vector<Parameter> parameters = {{"weight", weight.get(), true}};
    const auto adamw = std::make_shared<AdamW>(parameters, AdamWConfig{});
    return std::pair([weight, adamw](Inputs&) { return adamw->step(1e-3), Variable(); },
                     [weight, parameters](Inputs&) { return gradient_norm(parameters), Variable(); });
  }();
  const Tensor targets = make.integers(o.vocabulary, {make.rows});
  const Tensor ids = make.integers(o.vocabulary, {B, T}), mask = make.integers(2, {B, T});
  const auto generator = std::make_shared<Generator>(1);
  // Shared by the cases: drawing them takes longer than measuring.
  const Variable wide = make.normal(hidden), other_wide = make.normal(hidden);
  const Variable x = make.normal(tokens), other_x = make.normal(tokens);
  const Variable row = make.normal(vector), other_row = make.normal(vector);
  const Variable q = make.normal(heads), k = make.normal(heads), v = make.normal(heads);
  const Variable unit_key(l2_normalize(k).value(), true);
  const Variable positive_q = make.between(0, 1, heads), positive_k = make.between(0, 1, heads);
  const Variable beta = make.between(0, 1, scalars);
  const Variable gate = make.between(-0.1, 0, scalars), gates = make.between(-0.1, 0, heads);
  const RecurrenceOptions additive{.final_state = false};
  const RecurrenceOptions normalised{.normalise = true, .final_state = false};
  const DeltaRuleOptions delta{.final_state = false};
  const auto copy_halves = [wide, half = 2 * D](Inputs&) {
    const Span span("copy", Phase::update);
    wide.value().narrow(1, 0, half).contiguous();
    return Variable();
  };
  const auto gmm_inputs = [&] {
    return Inputs{make.normal({B, T, H, o.routing}), make.normal({H, K, o.routing}),
                  make.between(0.5, 2, {H, K, o.routing}), make.normal({H, K})};
  };
  const auto elementwise = [&](const char* name, Variable (*f)(const Variable&)) {
    return KernelCase{str("elementwise/", name), {wide}, [f](Inputs& in) { return f(in[0]); }};
  };
  return {
      elementwise("sigmoid", sigmoid),
      elementwise("log_sigmoid", log_sigmoid),
      elementwise("softplus", softplus),
      elementwise("silu", silu),
      elementwise("gelu_erf", gelu_erf),
      elementwise("gelu_tanh", gelu_tanh),
      elementwise("exp", exp),
      elementwise("reciprocal", reciprocal),
      elementwise("elu_plus_one", elu_plus_one),
      elementwise("sum", sum),
      {"elementwise/swiglu", {wide, other_wide}, [](Inputs& in) { return swiglu(in[0], in[1]); }},
      {"elementwise/add", {x, other_x}, [](Inputs& in) { return add(in[0], in[1]); }},
      {"elementwise/add of a row", {x, row}, [](Inputs& in) { return add(in[0], in[1]); }},
      {"elementwise/multiply", {x, other_x}, [](Inputs& in) { return multiply(in[0], in[1]); }},
      {"elementwise/scale", {x}, [](Inputs& in) { return scale(in[0], 0.5); }},
      {"elementwise/dropout", {x}, [generator](Inputs& in) { return dropout(in[0], 0.1, *generator); }},
      {"elementwise/mask_rows", {x}, [mask](Inputs& in) { return mask_rows(in[0], mask); }},
      {"softmax/softmax", {wide}, [](Inputs& in) { return softmax(in[0]); }},
      {"softmax/log_softmax", {wide}, [](Inputs& in) { return log_softmax(in[0]); }},
      {"softmax/logsumexp", {wide}, [](Inputs& in) { return logsumexp(in[0]); }},
      {"softmax/cross_entropy",
       {make.normal(logits)},
       [targets](Inputs& in) { return cross_entropy(in[0], targets); }},
      {"norm/layer_norm", {x, row, other_row}, [](Inputs& in) { return layer_norm(in[0], in[1], in[2]); }},
      {"norm/rms_norm", {x, row}, [](Inputs& in) { return rms_norm(in[0], in[1]); }},
      {"norm/gated_rms_norm",
       {x, other_x, row},
       [](Inputs& in) { return gated_rms_norm(in[0], in[1], in[2]); }},
      {"norm/l2_normalize", {q}, [](Inputs& in) { return l2_normalize(in[0]); }},
      {"conv/causal_conv1d",
       {x, make.normal({D, 4})},
       [](Inputs& in) {
         return causal_conv1d(in[0], in[1], {}, {}, {.silu = true, .final_state = false}).output;
       }},
      {"rope/rope", {q}, [](Inputs& in) { return rope(in[0]); }},
      {"embedding/embedding",
       {make.normal({o.vocabulary, D})},
       [ids](Inputs& in) { return embedding(ids, in[0]); }},
      {"decay_gate/decay_gate",
       {q, make.normal({H}), make.normal({H, d})},
       [](Inputs& in) { return decay_gate(in[0], in[1], in[2]); }},
      {"gemm/linear",
       {make.normal({make.rows, D}), make.normal({4 * D, D}), make.normal({4 * D})},
       [](Inputs& in) { return linear(in[0], in[1], in[2]); },
       8 * N * static_cast<double>(D * D)},
      {"gmm/gmm_log_density", gmm_inputs(), [](Inputs& in) { return gmm_log_density(in[0], in[1], in[2]); },
       3 * densities},
      {"gmm/gmm_posterior", gmm_inputs(),
       [](Inputs& in) { return gmm_posterior(in[0], in[1], in[2], in[3]); }, 3 * densities},
      {"attention/attention",
       {q, k, v},
       [](Inputs& in) { return attention(in[0], in[1], in[2], {.causal = true}); },
       4 * pairs * static_cast<double>(d)},
      {"recurrence/additive",
       {q, k, v},
       [=](Inputs& in) { return recurrence(in[0], in[1], in[2], additive).output; },
       4 * state},
      {"recurrence/additive, normalised",
       {positive_q, positive_k, v},
       [=](Inputs& in) { return recurrence(in[0], in[1], in[2], normalised).output; },
       4 * state},
      {"recurrence/additive, a gate a head",
       {q, k, v, gate},
       [=](Inputs& in) { return recurrence(in[0], in[1], in[2], additive, in[3]).output; },
       4 * state},
      {"recurrence/additive, a gate a channel",
       {q, k, v, gates},
       [=](Inputs& in) { return recurrence(in[0], in[1], in[2], additive, in[3]).output; },
       4 * state},
      {"recurrence/delta rule",
       {q, unit_key, v, beta},
       [=](Inputs& in) { return delta_rule(in[0], in[1], in[2], in[3], delta).output; },
       6 * state},
      {"recurrence/delta rule, a gate a head",
       {q, unit_key, v, beta, gate},
       [=](Inputs& in) { return delta_rule(in[0], in[1], in[2], in[3], delta, in[4]).output; },
       6 * state},
      {"recurrence/delta rule, a gate a channel",
       {q, unit_key, v, beta, gates},
       [=](Inputs& in) { return delta_rule(in[0], in[1], in[2], in[3], delta, in[4]).output; },
       6 * state},
      {"longhorn/longhorn",
       {q, k, v, beta},
       [=](Inputs& in) { return longhorn(in[0], in[1], in[2], in[3], delta).output; },
       6 * state},
      {"conjugate_gradient/mesa",
       {q, unit_key, v, gate, beta, make.between(0.5, 1, {H, d})},
       [](Inputs& in) {
         return mesa(in[0], in[1], in[2], in[3], in[4], in[5], {.final_state = false}).output;
       },
       // The two recurrences, and a factorisation by Cholesky for every token and head.
       (8 + static_cast<double>(d) / 3) * state},
      {"scan/selective_scan",
       {x, make.between(0.01, 0.1, tokens), make.between(-2, -1, {D, 16}), make.normal({B, T, 16}),
        make.normal({B, T, 16}), row},
       [](Inputs& in) { return selective_scan(in[0], in[1], in[2], in[3], in[4], in[5], {}, false).output; },
       7 * 16 * N * static_cast<double>(D)},
      {"copy/half of each row", {}, copy_halves, 0, weight_bytes},
      {"optimizer/adamw", {}, optimizer.first, 0, 7 * weight_bytes},
      {"optimizer/gradient norm", {}, optimizer.second, 0, weight_bytes},
  };
}

/// The seconds that ops take in each phase, while it lives.
class PhaseTimes {
 public:
  explicit PhaseTimes(Device device) {
    set_span_observer([this](std::string_view, Phase phase,
                             double seconds) { seconds_[static_cast<size_t>(phase)] += seconds; },
                      device);
  }
  ~PhaseTimes() { set_span_observer({}); }
  PhaseTimes(const PhaseTimes&) = delete;
  PhaseTimes& operator=(const PhaseTimes&) = delete;

  double operator[](Phase phase) const { return seconds_[static_cast<size_t>(phase)]; }

 private:
  double seconds_[3] = {};
};

Figure figure_of(std::string name, std::vector<double> seconds, double flops, double bytes) {
  Figure figure;
  figure.name = std::move(name);
  figure.seconds = std::move(seconds);
  figure.flops = flops;
  figure.bytes = bytes;
  return figure;
}

void measure_case(KernelCase& kernel, const Measuring& measuring, std::vector<Figure>& figures) {
  double input_bytes = 0, output_bytes = 0;
  bool differentiable = true;
  for (const Variable& input : kernel.inputs) input_bytes += static_cast<double>(input.value().bytes());
  Tensor cotangent;
  const auto times = time_parts(measuring.seconds, [&]() -> std::vector<double> {
    const PhaseTimes times(measuring.device);
    const Variable y = kernel.output(kernel.inputs);
    differentiable = y.defined();
    if (!differentiable) return {times[Phase::update], 0};
    output_bytes = static_cast<double>(y.value().bytes());
    if (!cotangent.defined()) cotangent = Tensor::full(y.shape(), 1, y.dtype(), measuring.device);
    backward({y}, {cotangent});
    for (Variable& input : kernel.inputs) input.zero_grad();
    return {times[Phase::forward], times[Phase::backward]};
  });
  const std::string forward = differentiable ? kernel.name + ", forward" : kernel.name;
  const std::string back = kernel.name + ", backward";
  if (measuring.wanted(forward)) {
    figures.push_back(figure_of(forward, times[0], kernel.flops, input_bytes + output_bytes + kernel.bytes));
  }
  if (differentiable && measuring.wanted(back)) {
    figures.push_back(figure_of(back, times[1], 2 * kernel.flops, 2 * input_bytes + output_bytes));
  }
}

}  // namespace

void KernelsOptions::validate() const {
  const auto count = [](const char* option, int64_t value) { check_count(option, value, 1, 1 << 20); };
  count("batch", batch);
  count("context", context);
  count("width", width);
  count("heads", heads);
  count("components", components);
  count("routing", routing);
  count("vocabulary", vocabulary);
  check_usage(width % heads == 0 && width / heads % 2 == 0, "[options] --heads: ", heads,
              "; allowed: what divides --width ", width, " into even sizes");
}

void declare_kernels_options(CLI::App& app, KernelsOptions& o) {
  app.option_defaults()->always_capture_default();
  const auto group = [&](auto* option) { option->group("Sizes"); };
  group(app.add_option("--batch", o.batch, "Sequences"));
  group(app.add_option("--context", o.context, "Tokens of each"));
  group(app.add_option("--width", o.width, "Width of the residual stream"));
  group(app.add_option("--heads", o.heads, "Heads of a mixer"));
  group(app.add_option("--components", o.components, "Components of a mixture: K"));
  group(app.add_option("--routing", o.routing, "Size of the routing vectors: dr"));
  group(app.add_option("--vocabulary", o.vocabulary, "Distinct tokens"));
}

Findings measure_kernels(const KernelsOptions& options, const Measuring& measuring) {
  Findings findings;
  for (KernelCase& kernel : kernel_cases(options, measuring.device)) {
    const bool any = measuring.wanted(kernel.name) || measuring.wanted(kernel.name + ", forward") ||
                     measuring.wanted(kernel.name + ", backward");
    if (any) findings.attempt(kernel.name, [&] { measure_case(kernel, measuring, findings.figures); });
  }
  return findings;
}

std::vector<std::string> kernel_names() {
  const KernelsOptions smallest{
      .batch = 1, .context = 1, .width = 2, .heads = 1, .components = 1, .routing = 1, .vocabulary = 1};
  std::vector<std::string> names;
  for (const KernelCase& kernel : kernel_cases(smallest, Device{})) names.push_back(kernel.name);
  return names;
}

}  // namespace mixgrad
