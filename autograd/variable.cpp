#include "autograd/variable.h"

#include <algorithm>

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

namespace {
thread_local bool is_recording = true;
thread_local InnerTape* inner_tape = nullptr;
}  // namespace

bool Variable::requires_grad() const {
  if (!defined() || !state_->requires_grad) return false;
  const bool leaf = state_->node == nullptr;
  return !leaf || inner_tape == nullptr || inner_tape->wants(*this);
}

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

NoGrad::NoGrad() : before_(is_recording) { is_recording = false; }
NoGrad::~NoGrad() { is_recording = before_; }

InnerTape::InnerTape(std::vector<Variable> leaves)
    : leaves_(std::move(leaves)), outer_(inner_tape), was_recording_(is_recording) {
  inner_tape = this;
  is_recording = true;
}

InnerTape::~InnerTape() {
  inner_tape = outer_;
  is_recording = was_recording_;
}

bool InnerTape::wants(const Variable& leaf) const {
  return std::any_of(leaves_.begin(), leaves_.end(),
                     [&](const Variable& given) { return given.state_ == leaf.state_; });
}

bool recording() { return is_recording; }

}  // namespace mixgrad
