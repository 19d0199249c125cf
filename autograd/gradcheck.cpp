#include "autograd/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iomanip>

#include "tensor/parallel.h"

namespace mixgrad {

namespace {

constexpr size_t most_entries = 200;  // that are differentiated one by one, of one input
constexpr double kink_tolerance = 1e-4;

/// Installs a hook for one scope.
class HookScope {
 public:
  explicit HookScope(BackwardHook hook) { set_backward_hook(std::move(hook)); }
  ~HookScope() { set_backward_hook({}); }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;
};

/// While it lives, kernels run on one thread: a check is thousands of tiny calls, which would spend their
/// time waking and awaiting threads.
class OneThread {
 public:
  OneThread() : before_(thread_count()) { set_thread_count(1); }
  ~OneThread() { set_thread_count(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

Tensor make_tensor(const std::vector<double>& values, const Shape& shape, Device device, DType dtype) {
  return Tensor::from(values, shape, device).to(dtype);
}

std::vector<double> concatenate(const std::vector<Variable>& outputs) {
  std::vector<double> all;
  for (const Variable& output : outputs) {
    const std::vector<double> values = output.value().to_vector();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

/// Leaves with the inputs' values, of the wanted device and element type.
std::vector<Variable> make_leaves(const GradCase& grad_case, Device device, DType dtype) {
  std::vector<Variable> leaves;
  for (const GradInput& input : grad_case.inputs) {
    leaves.emplace_back(make_tensor(input.value.to_vector(), input.value.shape(), device, dtype), true);
  }
  return leaves;
}

/// Normal values that float32 holds exactly.
std::vector<double> draw_cotangents(size_t count, uint64_t seed) {
  Generator generator(seed, Stream::sampling);  // another stream than that of the inputs
  return normal({static_cast<int64_t>(count)}, 1, generator, DType::float64).to(DType::float32).to_vector();
}

/// A power of two, so that x + step is exact: 2^-12, less for an input whose entries are all small.
double step_for(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  const double scale = largest > 0 ? std::min(1.0, largest) : 1.0;
  return std::exp2(std::floor(std::log2(scale)) - 12);
}

/// All entries, or of many some at random, in increasing order.
std::vector<int64_t> choose_entries(int64_t count, Generator& generator) {
  std::set<int64_t> chosen;
  const auto wanted = std::min<size_t>(count, most_entries);
  const bool all = wanted == static_cast<size_t>(count);
  while (chosen.size() < wanted) {
    chosen.insert(all ? static_cast<int64_t>(chosen.size())
                      : static_cast<int64_t>(generator.uniform() * count));
  }
  return {chosen.begin(), chosen.end()};
}

/// Every entry up or down by the same amount; of length 1.
std::vector<double> random_direction(int64_t count, Generator& generator) {
  std::vector<double> direction(count);
  for (double& entry : direction) entry = (generator.uniform() < 0.5 ? -1 : 1) / std::sqrt(count);
  return direction;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

double gradcheck_tolerance(DType dtype) { return dtype == DType::float64 ? 1e-8 : 1e-4; }

GradChecker::GradChecker(std::string label, GradCase grad_case, uint64_t seed)
    : label_(std::move(label)), case_(std::move(grad_case)), seed_(seed) {
  const NoGrad no_grad;
  const OneThread one_thread;
  outputs_ = concatenate(case_.function(make_leaves(case_, {}, DType::float64)));
  cotangents_ = draw_cotangents(outputs_.size(), seed_);
  for (size_t input = 0; input < case_.inputs.size(); ++input) numeric_.push_back(differentiate(input));
}

GradChecker::Derivative GradChecker::differentiate(size_t input, const std::vector<double>& direction,
                                                   double fraction) const {
  const std::vector<double> start = case_.inputs[input].value.to_vector();
  const double step = fraction * step_for(start);
  std::vector<Variable> leaves = make_leaves(case_, {}, DType::float64);
  const auto outputs_at = [&](double distance) {
    std::vector<double> moved = start;
    for (size_t i = 0; i < moved.size(); ++i) moved[i] += distance * direction[i];
    leaves[input] = Variable(Tensor::from(moved, case_.inputs[input].value.shape()));
    return concatenate(case_.function(leaves));
  };
  const std::vector<double> plus = outputs_at(step), plus2 = outputs_at(2 * step);
  const std::vector<double> minus = outputs_at(-step), minus2 = outputs_at(-2 * step);

  // Output by output, before any sum over outputs: those that do not move drop out without rounding.
  Derivative derivative{};
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const double right = plus[i] - outputs_[i], left = outputs_[i] - minus[i];
    const double right2 = plus2[i] - outputs_[i], left2 = outputs_[i] - minus2[i];
    derivative.value += cotangents_[i] * (8 * (plus[i] - minus[i]) - (plus2[i] - minus2[i])) / (12 * step);
    derivative.left += cotangents_[i] * left / step;
    derivative.right += cotangents_[i] * right / step;
    // right - left is h^2 f'' + O(h^4) where f is smooth, and h times the jump of the slope where it has one.
    derivative.kink += cotangents_[i] * (2 * (right - left) - (right2 - left2) / 2) / step;
  }
  return derivative;
}

GradChecker::NumericGradient GradChecker::differentiate(size_t input) const {
  const int64_t count = case_.inputs[input].value.elements();
  Generator generator(seed_, Stream::data);
  NumericGradient numeric;
  numeric.entries = choose_entries(count, generator);
  for (const int64_t entry : numeric.entries) {
    std::vector<double> axis(count);
    axis[entry] = 1;
    numeric.derivatives.push_back(differentiate(input, axis));
  }
  if (static_cast<int64_t>(numeric.entries.size()) < count) {
    numeric.direction = random_direction(count, generator);
    numeric.along_direction = differentiate(input, numeric.direction);
  }
  return numeric;
}

GradChecker::AnalyticPass GradChecker::analytic_pass(DType dtype, Device device) const {
  const std::vector<Variable> leaves = make_leaves(case_, device, dtype);
  const std::vector<Variable> outputs = case_.function(leaves);
  Tensors cotangents;
  auto next = cotangents_.begin();
  for (const Variable& output : outputs) {
    const auto end = next + output.value().elements();
    cotangents.push_back(make_tensor({next, end}, output.shape(), device, dtype));
    next = end;
  }
  backward(outputs, cotangents);

  AnalyticPass pass;
  pass.outputs = concatenate(outputs);
  for (const Variable& leaf : leaves) {
    pass.gradients.push_back(leaf.grad().defined() ? leaf.grad().to_vector() : std::vector<double>());
  }
  return pass;
}

GradCheckResult GradChecker::check(DType dtype, const BackwardHook& corruption, Device device) const {
  GradCheckResult result;
  const HookScope hook([&](std::string_view op, int input, Tensor& gradient) {
    result.reached.insert({std::string(op), input});
    if (corruption) corruption(op, input, gradient);
  });
  const AnalyticPass pass = analytic_pass(dtype, device);
  for (size_t input = 0; input < numeric_.size(); ++input) {
    compare(input, pass.gradients[input], gradcheck_tolerance(dtype), result);
  }
  check_outputs(pass, gradcheck_tolerance(dtype), result);
  check_purity(pass, dtype, device, result);
  if (result.derivatives == 0) result.failures.push_back(str(label_, ": has no input to differentiate"));
  return result;
}

void GradChecker::check_outputs(const AnalyticPass& pass, double tolerance, GradCheckResult& result) const {
  double scale = 0, error = 0;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const double difference = std::abs(pass.outputs[i] - outputs_[i]);
    scale = std::max(scale, std::abs(outputs_[i]));
    if (!(difference <= error) && !std::isnan(error)) error = difference;
  }
  if (error <= tolerance * scale) return;
  result.failures.push_back(str(label_, ": outputs differ by ", error,
                                " from those in float64 on the CPU, the largest is ", scale));
}

void GradChecker::check_purity(const AnalyticPass& first, DType dtype, Device device,
                               GradCheckResult& result) const {
  const AnalyticPass second = analytic_pass(dtype, device);
  const std::vector<double> unrecorded = [&] {
    const NoGrad no_grad;
    return concatenate(case_.function(make_leaves(case_, device, dtype)));
  }();
  if (!same_bits(first.outputs, second.outputs)) {
    result.failures.push_back(str(label_, ": a second call with the same inputs gave other outputs"));
  }
  if (!same_bits(first.outputs, unrecorded)) {
    result.failures.push_back(str(label_, ": a call under NoGrad gave other outputs"));
  }
  for (size_t input = 0; input < case_.inputs.size(); ++input) {
    if (!same_bits(first.gradients[input], second.gradients[input])) {
      result.failures.push_back(str(label_, ": ", where(input), "a second backward pass gave other bits"));
    }
  }
}

void GradChecker::compare(size_t input, const std::vector<double>& gradient, double tolerance,
                          GradCheckResult& result) const {
  const NumericGradient& numeric = numeric_[input];
  const auto fail = [&](const auto&... words) { result.failures.push_back(str(label_, ": ", words...)); };
  if (numeric.entries.empty()) return;
  if (gradient.empty()) return fail(where(input), "no gradient arrived");

  double scale = 0;
  for (size_t i = 0; i < numeric.entries.size(); ++i) {
    const double value = numeric.derivatives[i].value;
    if (!std::isfinite(value)) return fail(where(input, numeric.entries[i]), "the numeric value is ", value);
    scale = std::max(scale, std::abs(value));
  }
  if (scale == 0) {
    return fail(where(input), "the numeric gradient is 0 everywhere, so that nothing was tested");
  }
  for (size_t i = 0; i < numeric.entries.size(); ++i) {
    const Derivative& derivative = numeric.derivatives[i];
    if (std::abs(derivative.kink) <= kink_tolerance * scale) continue;
    return fail(where(input, numeric.entries[i]), "the function has a kink, slope ", derivative.left,
                " on the left and ", derivative.right, " on the right");
  }

  double worst = 0;
  std::string message;
  bool wrong = false;  // already: then nothing else has to be looked at more closely
  const auto measure = [&](const std::string& place, double analytic, double numeric_value,
                           const std::vector<double>& direction) {
    ++result.derivatives;
    const auto error_of = [&](double value) { return std::abs(analytic - value) / scale; };
    // Where a function bends strongly, the usual step errs. With finer ones the numeric value comes nearer to
    // a right gradient, and to a wrong one it does not.
    for (const double fraction : {1.0 / 8, 1.0 / 64}) {
      if (wrong || !(error_of(numeric_value) > tolerance)) break;
      const NoGrad no_grad;
      const OneThread one_thread;
      const double finer = differentiate(input, direction, fraction).value;
      if (error_of(finer) < error_of(numeric_value)) numeric_value = finer;
    }
    const double error = error_of(numeric_value);
    wrong = wrong || error > tolerance;
    if (error <= worst || std::isnan(worst)) return;  // a NaN comes in, and stays
    worst = error;
    message = str(std::setprecision(12), place, "analytic ", analytic, ", numeric ", numeric_value,
                  std::setprecision(3), ", error ", error, " of the largest entry");
  };
  for (size_t i = 0; i < numeric.entries.size(); ++i) {
    const int64_t entry = numeric.entries[i];
    std::vector<double> axis(gradient.size());
    axis[entry] = 1;
    measure(where(input, entry), gradient[entry], numeric.derivatives[i].value, axis);
  }
  if (!numeric.direction.empty()) {
    measure(where(input) + "along a random direction: ", dot(gradient, numeric.direction),
            numeric.along_direction.value, numeric.direction);
  }
  if (!(worst <= tolerance)) fail(message);
  if (!(worst <= result.error) && !std::isnan(result.error)) result.error = worst;
}

std::string GradChecker::where(size_t input) const {
  return str("input ", input, " '", case_.inputs[input].name, "': ");
}

std::string GradChecker::where(size_t input, int64_t entry) const {
  const Shape& shape = case_.inputs[input].value.shape();
  Shape index = shape;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    index[axis] = entry % shape[axis];
    entry /= shape[axis];
  }
  return str("input ", input, " '", case_.inputs[input].name, "' at ", index, ": ");
}

std::set<std::string> ops_reached(const GradCase& grad_case) {
  const OneThread one_thread;
  std::set<std::string> ops;
  const HookScope hook([&](std::string_view op, int, Tensor&) { ops.insert(std::string(op)); });
  const std::vector<Variable> outputs = grad_case.function(make_leaves(grad_case, {}, DType::float64));
  Tensors ones;
  for (const Variable& output : outputs) ones.push_back(Tensor::full(output.shape(), 1, DType::float64));
  backward(outputs, ones);
  return ops;
}

GradCheckResult check_gradients(const std::string& label, const GradCase& grad_case,
                                const GradCheckOptions& options) {
  try {
    return GradChecker(label, grad_case, options.seed).check(options.dtype, {}, options.device);
  } catch (const std::exception& error) {
    GradCheckResult result;
    result.failures.push_back(str(label, ": ", error.what()));
    return result;
  }
}

#define OP(file) std::vector<GradCase> file##_cases(CaseInputs& inputs);
#include "autograd/ops/ops.def"
#undef OP

std::vector<GradCaseGroup> all_op_cases(uint64_t seed) {
  std::vector<GradCaseGroup> groups;
  const auto add = [&](std::string name, std::vector<GradCase> (*make_cases)(CaseInputs&)) {
    CaseInputs inputs(seed);
    groups.push_back({std::move(name), make_cases(inputs)});
  };
#define OP(file) add(#file, file##_cases);
#include "autograd/ops/ops.def"
#undef OP
  return groups;
}

}  // namespace mixgrad
