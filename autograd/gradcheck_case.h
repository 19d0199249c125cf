// What the gradient checker checks: a function of differentiable inputs, with values to check it at.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/variable.h"

namespace mixgrad {

/// One differentiable input of a case: float64 values that float32 holds exactly, so that both start from one
/// point.
struct GradInput {
  std::string name;
  Tensor value;
};

/// A function at a point. The checker turns the inputs into leaves of the wanted device and element type,
/// calls the function as often as it needs, and expects it to be pure: the same inputs give the same outputs.
struct GradCase {
  std::string name;  // what is special about it: "causal, window 3"
  std::vector<GradInput> inputs;
  std::function<std::vector<Variable>(const std::vector<Variable>&)> function;
};

/// Random inputs for cases.
class CaseInputs {
 public:
  explicit CaseInputs(uint64_t seed) : generator_(seed) {}

  /// Normal values, rounded to float32.
  GradInput normal(std::string name, const Shape& shape, double deviation = 1) {
    return {std::move(name), rounded(mixgrad::normal(shape, deviation, generator_, DType::float64))};
  }
  /// Values in [low, high), rounded to float32.
  GradInput uniform(std::string name, const Shape& shape, double low, double high) {
    return {std::move(name), rounded(mixgrad::uniform(shape, low, high, generator_, DType::float64))};
  }
  Generator& generator() { return generator_; }

 private:
  static Tensor rounded(const Tensor& values) { return values.to(DType::float32).to(DType::float64); }

  Generator generator_;
};

}  // namespace mixgrad
