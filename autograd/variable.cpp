#include "autograd/variable.h"

#include "autograd/tape.h"

namespace mixgrad {

Variable::Variable(Tensor value, bool requires_grad) : state_(std::make_shared<State>()) {
  check(!requires_grad || is_floating(value.dtype()), "[variable] ", value.dtype(), " has no gradient");
  state_->value = std::move(value);
  state_->requires_grad = requires_grad;
}

Variable::Variable(Tensor value, std::shared_ptr<Node> node, int output) : state_(std::make_shared<State>()) {
  state_->value = std::move(value);
  state_->requires_grad = true;
  state_->node = std::move(node);
  state_->output = output;
}

const Tensor& Variable::value() const {
  static const Tensor undefined;
  return defined() ? state_->value : undefined;
}

Tensor& Variable::value() {
  check(defined(), "[variable] the value of an undefined variable");
  return state_->value;
}

bool Variable::requires_grad() const { return defined() && state_->requires_grad; }

const Tensor& Variable::grad() const {
  static const Tensor undefined;
  return defined() ? state_->grad : undefined;
}

Tensor& Variable::grad() {
  check(defined(), "[variable] the gradient of an undefined variable");
  return state_->grad;
}

void Variable::zero_grad() {
  if (defined()) state_->grad = Tensor();
}

namespace {
thread_local bool is_recording = true;
}

NoGrad::NoGrad() : before_(is_recording) { is_recording = false; }
NoGrad::~NoGrad() { is_recording = before_; }
bool recording() { return is_recording; }

}  // namespace mixgrad
