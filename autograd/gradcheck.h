// The gradient checker: analytic gradients against numeric ones, and a self-test that it notices wrong ones.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "autograd/gradcheck_case.h"
#include "autograd/tape.h"

namespace mixgrad {

/// How to check.
struct GradCheckOptions {
  Device device{};               // of the analytic gradient; the numeric one is computed on the CPU
  DType dtype = DType::float64;  // of the analytic gradient, float64 or float32; the numeric one is float64
  uint64_t seed = 1;             // of the cotangents, and of the entries that are checked of a large input
};

/// The largest error that passes: 1e-8 in float64, 1e-4 in float32. Over three seeds right backwards of all
/// ops stay below 6e-11 and 8e-6, and those of whole mixers, which bend more, below 8e-9 and 5e-5; the
/// mildest of the self-test's corruptions errs by 9e-4.
double gradcheck_tolerance(DType dtype);

/// One input of one op: what a backward returns one gradient for.
struct OpInput {
  std::string op;
  int input;
  auto operator<=>(const OpInput&) const = default;
};

/// What came of checking a case.
struct GradCheckResult {
  double error = 0;                   // the largest of all; NaN when one was NaN
  int64_t derivatives = 0;            // how many were compared
  std::set<OpInput> reached;          // the ops whose backward ran, by the inputs that it had to serve
  std::vector<std::string> failures;  // a line each; none: the case passed
};

/// Compares the gradients of one case with its numeric derivatives.
///
/// The function's outputs y are reduced to the scalar f = sum over outputs of <y, cotangent> with random
/// cotangents. A plain sum wouldn't do: the sum of a softmax is constant, and a backward of zeros would pass.
///
/// A numeric derivative along a unit direction is (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h, of error
/// O(h^4), in float64 whatever the element type under test. All entries of an input are checked, or, of a
/// large one, random entries and one random direction, in which every entry takes part.
///
/// The error of a derivative is |analytic - numeric| / (largest |numeric| of that input's entries): free of
/// scale, so that one tolerance fits losses and gradients of any size, and without the noise of dividing a
/// small entry's rounding by that small entry.
class GradChecker {
 public:
  /// Computes the numeric derivatives. `label` names the case in messages. Throws what the function throws.
  GradChecker(std::string label, GradCase grad_case, uint64_t seed);

  /// Computes and compares the analytic gradients in an element type, on a device. A failure is: an error
  /// that isn't <= the tolerance (so NaN fails); a numeric gradient that isn't finite, or is 0 everywhere,
  /// which tests nothing; a point where the function has a kink; an impure function: outputs or gradients of
  /// a second call with other bits; outputs that differ from those in float64 on the CPU by more than the
  /// tolerance, relative to the largest. `corruption`, if any, changes the gradients on their way. Throws
  /// what the function or its backward throws.
  GradCheckResult check(DType dtype, const BackwardHook& corruption = {}, Device device = {}) const;

 private:
  /// The derivative of f at the case's inputs along a unit direction.
  struct Derivative {
    double value;
    double left, right;  // the one-sided slopes
    double kink;         // O(h^3) where f is smooth, the jump of the slope where it isn't
  };
  struct NumericGradient {
    std::vector<int64_t> entries;         // the entries of the input that were differentiated
    std::vector<Derivative> derivatives;  // along the axis of each
    std::vector<double> direction;        // a unit vector over all entries; empty when `entries` are all
    Derivative along_direction;
  };
  struct AnalyticPass {
    std::vector<double> outputs;                 // of all outputs, one after the other
    std::vector<std::vector<double>> gradients;  // of each input; empty when none arrived
  };

  /// Along a direction, with so much of the usual step.
  Derivative differentiate(size_t input, const std::vector<double>& direction, double fraction = 1) const;
  NumericGradient differentiate(size_t input) const;
  AnalyticPass analytic_pass(DType dtype, Device device) const;
  void check_outputs(const AnalyticPass& pass, double tolerance, GradCheckResult& result) const;
  void check_purity(const AnalyticPass& first, DType dtype, Device device, GradCheckResult& result) const;
  void compare(size_t input, const std::vector<double>& gradient, double tolerance,
               GradCheckResult& result) const;
  std::string where(size_t input) const;
  std::string where(size_t input, int64_t entry) const;

  std::string label_;
  GradCase case_;
  uint64_t seed_;
  std::vector<double> outputs_;     // f64 on the CPU, of all outputs, one after the other
  std::vector<double> cotangents_;  // of the same elements; exact in float32
  std::vector<NumericGradient> numeric_;
};

/// The ops whose backward runs when the gradients of a case are computed.
std::set<std::string> ops_reached(const GradCase& grad_case);

/// GradChecker::check, with what a case throws as its failure.
GradCheckResult check_gradients(const std::string& label, const GradCase& grad_case,
                                const GradCheckOptions& options);

/// Cases that belong together, such as those of one file of ops.
struct GradCaseGroup {
  std::string name;
  std::vector<GradCase> cases;
};

/// The cases of all files named in autograd/ops/ops.def, in its order. `seed` draws the inputs.
std::vector<GradCaseGroup> all_op_cases(uint64_t seed);

}  // namespace mixgrad
