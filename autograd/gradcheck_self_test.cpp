#include "autograd/gradcheck_self_test.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace mixgrad {

namespace {

double& largest(std::vector<double>& gradient) {
  return *std::max_element(gradient.begin(), gradient.end(),
                           [](double a, double b) { return std::abs(a) < std::abs(b); });
}

void scale_all(std::vector<double>& gradient) {
  for (double& element : gradient) element *= 1.01;
}
void flip_sign(std::vector<double>& gradient) { largest(gradient) = -largest(gradient); }
void drop_one(std::vector<double>& gradient) { largest(gradient) = 0; }
void roll(std::vector<double>& gradient) {
  std::rotate(gradient.begin(), gradient.begin() + 1, gradient.end());
}
void zero_all(std::vector<double>& gradient) { std::fill(gradient.begin(), gradient.end(), 0.0); }
void one_nan(std::vector<double>& gradient) { largest(gradient) = std::numeric_limits<double>::quiet_NaN(); }
void all_ones(std::vector<double>& gradient) { std::fill(gradient.begin(), gradient.end(), 1.0); }

/// What the checker made of a corrupted gradient.
struct Outcome {
  enum class Kind { unchanged, missed, caught };  // in increasing order of merit
  Kind kind = Kind::unchanged;
  double error = 0;
};

Outcome check_corrupted(const GradChecker& checker, const OpInput& target, const Corruption& corruption,
                        const GradCheckOptions& options) {
  bool changed = false;
  const auto corrupt = [&](std::string_view op, int input, Tensor& gradient) {
    if (op != target.op || input != target.input || gradient.elements() == 0) return;
    std::vector<double> values = gradient.to_vector();
    corruption.apply(values);
    const Tensor corrupted = Tensor::from(values, gradient.shape(), gradient.device()).to(gradient.dtype());
    changed = changed || corrupted.to_vector() != gradient.to_vector();  // NaN differs from everything
    gradient = corrupted;
  };
  const GradCheckResult result = checker.check(options.dtype, corrupt, options.device);
  if (!changed) return {};
  return {result.failures.empty() ? Outcome::Kind::missed : Outcome::Kind::caught, result.error};
}

/// The best outcome among the cases that reach the target.
Outcome best_outcome(const std::vector<const GradChecker*>& checkers, const OpInput& target,
                     const Corruption& corruption, const GradCheckOptions& options) {
  Outcome best;
  for (const GradChecker* checker : checkers) {
    const Outcome outcome = check_corrupted(*checker, target, corruption, options);
    if (outcome.kind > best.kind) best = outcome;
    if (best.kind == Outcome::Kind::caught) break;
  }
  return best;
}

}  // namespace

const std::vector<Corruption>& corruptions() {
  static const std::vector<Corruption> all = {
      {"times 1.01", scale_all}, {"one sign flipped", flip_sign}, {"one element dropped", drop_one},
      {"rolled by one", roll},   {"all zero", zero_all},          {"one NaN", one_nan},
      {"all ones", all_ones},
  };
  return all;
}

SelfTestResult self_test(const std::vector<GradCaseGroup>& groups, const GradCheckOptions& options) {
  std::vector<GradChecker> checkers;
  for (const GradCaseGroup& group : groups) {
    for (const GradCase& grad_case : group.cases) {
      checkers.emplace_back(group.name + "/" + grad_case.name, grad_case, options.seed);
    }
  }
  std::map<OpInput, std::vector<const GradChecker*>> targets;
  std::set<std::string> ops;
  for (const GradChecker& checker : checkers) {
    const GradCheckResult result = checker.check(options.dtype, {}, options.device);
    check(result.failures.empty(), "[self-test] a case fails as it stands: ", join(result.failures, "; "));
    for (const OpInput& reached : result.reached) {
      targets[reached].push_back(&checker);
      ops.insert(reached.op);
    }
  }

  SelfTestResult result;
  result.ops = ops.size();
  result.inputs = targets.size();
  for (const auto& [target, reaching] : targets) {
    for (const Corruption& corruption : corruptions()) {
      ++result.trials;
      const std::string trial = str(target.op, ", input ", target.input, ": ", corruption.name);
      const Outcome outcome = best_outcome(reaching, target, corruption, options);
      if (outcome.kind == Outcome::Kind::missed) result.missed.push_back(trial);
      if (outcome.kind == Outcome::Kind::unchanged) result.unchanged.push_back(trial);
      if (outcome.kind == Outcome::Kind::caught) {
        ++result.caught;
        if (outcome.error < result.mildest_error) result.mildest_error = outcome.error;
      }
    }
  }
  return result;
}

}  // namespace mixgrad
