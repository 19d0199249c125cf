#include "autograd/check_finite.h"

#include <algorithm>
#include <cmath>

#include "tensor/dispatch.h"
#include "tensor/kernels/optimizer.h"

namespace mixgrad {

namespace {

std::string current_check;  // what the living FiniteCheck was told; empty: none lives
thread_local std::string place;

void enter(const std::string& name) { place += (place.empty() ? "" : ".") + name; }

}  // namespace

int64_t count_not_finite(const Tensor& tensor) {
  bool finite = false;
  dispatch(tensor, [&](auto device, auto type) {
    finite = std::isfinite(sum_of_squares(device, tensor.elements(), tensor.data<decltype(type)>()));
  });
  if (finite) return 0;
  const std::vector<double> values = tensor.to_vector();  // squares of large doubles overflow
  return std::count_if(values.begin(), values.end(), [](double value) { return !std::isfinite(value); });
}

FiniteCheck::FiniteCheck(std::string when) {
  check(!checking_finite(), "[check-finite] a check is going on already: ", current_check);
  current_check = std::move(when);
}
FiniteCheck::~FiniteCheck() { current_check.clear(); }

bool checking_finite() { return !current_check.empty(); }

Place::Place(std::string_view name) : length_before_(place.size()) {
  if (checking_finite()) enter(std::string(name));
}
Place::Place(std::string_view name, int64_t index) : length_before_(place.size()) {
  if (checking_finite()) enter(str(name, ".", index));
}
Place::~Place() { place.resize(length_before_); }

const std::string& current_place() { return place; }

void require_finite(const Tensor& tensor, const std::string& where, std::string_view op,
                    const std::string& what) {
  const bool floating =
      tensor.defined() && (tensor.dtype() == DType::float32 || tensor.dtype() == DType::float64);
  if (!floating) return;
  const int64_t bad = count_not_finite(tensor.contiguous());
  if (bad == 0) return;
  throw Error(str("[check-finite] ", current_check, ", ", where.empty() ? "outside the blocks" : where, ", ",
                  op, ": ", what, " has ", bad, " of ", tensor.elements(), " values that are not finite"));
}

}  // namespace mixgrad
