// Finding where a number stops being one: every op's outputs and gradients are looked at, at the price of
// reading them once more.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tensor/tensor.h"

namespace mixgrad {

/// How many elements are NaN or infinite. Of a floating type, contiguous.
int64_t count_not_finite(const Tensor& tensor);

/// While one lives, apply() and backward() throw Error at the first output or gradient that is not finite,
/// naming `when`, the place in the model and the op. One at a time, for all threads.
class FiniteCheck {
 public:
  explicit FiniteCheck(std::string when);
  ~FiniteCheck();
  FiniteCheck(const FiniteCheck&) = delete;
  FiniteCheck& operator=(const FiniteCheck&) = delete;
};

bool checking_finite();

/// Names, for a FiniteCheck, the part of a model whose ops are applied in this scope. Places nest:
/// "blocks.2.mixer". Costs a comparison when nobody checks.
class Place {
 public:
  explicit Place(std::string_view name);
  Place(std::string_view name, int64_t index);
  ~Place();
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  size_t length_before_;
};

/// Where the calling thread is.
const std::string& current_place();

/// For apply() and backward(): throws unless a tensor, if defined and floating, is finite. `what`: "output
/// 0".
void require_finite(const Tensor& tensor, const std::string& place, std::string_view op,
                    const std::string& what);

}  // namespace mixgrad
