// What follows from parameters alone, which is computed when they change and not each time that it is used.
#pragma once

#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace mixgrad {

/// Keeps a result of ops, a Variable or a struct of some, for who computes without gradients: a model that
/// generates needs the same constants for every token. Stamps of the parameters tell whether one has been
/// written since, by whomever. Where ops are recorded the result has to be on the tape: then it is computed
/// anew and nothing is kept, so that training needs no memory for it.
template <class Result>
class Kept {
 public:
  /// compute(), which must depend on nothing but these parameters.
  template <class Compute>
  Result get(std::initializer_list<Variable> parameters, const Compute& compute) {
    if (recording()) {
      result_.reset();
      return compute();
    }
    std::vector<uint64_t> stamps;
    for (const Variable& parameter : parameters) stamps.push_back(parameter.value().stamp());
    if (!result_ || stamps != stamps_) {
      result_ = compute();
      stamps_ = std::move(stamps);
    }
    return *result_;
  }

 private:
  std::optional<Result> result_;
  std::vector<uint64_t> stamps_;
};

}  // namespace mixgrad
