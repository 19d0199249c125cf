#include "autograd/op.h"

namespace mixgrad {

void check_same_type(std::string_view op, std::initializer_list<const Tensor*> inputs) {
  const Tensor* first = nullptr;
  int number = 0;
  for (const Tensor* input : inputs) {
    if (input->defined() && first == nullptr) first = input;
    check(!input->defined() || (input->dtype() == first->dtype() && input->device() == first->device()), "[",
          op, "] input ", number, " is ", input->dtype(), " on ", input->device(), ", another is ",
          first->dtype(), " on ", first->device(), ": they must agree");
    ++number;
  }
}

}  // namespace mixgrad
