// The gradient checker's self-test: does it notice wrong gradients?
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "autograd/gradcheck.h"

namespace mixgrad {

/// A way to get a gradient wrong.
struct Corruption {
  std::string name;
  void (*apply)(std::vector<double>& gradient);  // of one element or more
};

/// The seven ways, all as mild as their kind allows: times 1.01; the sign of one element; one element dropped
/// (both the largest, so that it is a change); moved on by one; all zero; one NaN; a constant.
const std::vector<Corruption>& corruptions();

/// What the self-test found. A trial is one way of corrupting the gradient for one input of one op.
struct SelfTestResult {
  int64_t ops = 0;
  int64_t inputs = 0;  // of all ops together
  int64_t trials = 0;  // inputs times ways
  int64_t caught = 0;
  double mildest_error = std::numeric_limits<double>::infinity();  // the smallest error that was caught
  std::vector<std::string> missed;  // wrong gradients that passed: "add, input 1: rolled"
  std::vector<std::string>
      unchanged;  // trials that no case can make: each corrupted gradient equals the right one
};

/// Corrupts the backward of every op that a case reaches, for every input, in every way. Each time all cases
/// that reach it are checked as ever; one failure among them catches it. Throws Error when a case fails as it
/// stands.
SelfTestResult self_test(const std::vector<GradCaseGroup>& groups, const GradCheckOptions& options);

}  // namespace mixgrad
