#include "autograd/tape.h"

#include <atomic>
#include <map>

#include "autograd/check_finite.h"
#include "autograd/profile.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/elementwise.h"

namespace mixgrad {

Edge::Edge(const Variable& input) {
  if (!input.requires_grad()) return;
  if (input.state_->node != nullptr) {
    node = input.state_->node;
    output = input.state_->output;
  } else {
    leaf = input;
  }
}

namespace {

std::atomic<uint64_t> next_number{0};
BackwardHook backward_hook;

/// sum += addend. Writes in place only where nobody else holds the sum.
void accumulate(Tensor& sum, Tensor addend) {
  if (!sum.defined()) {
    sum = std::move(addend);
    return;
  }
  check(sum.shape() == addend.shape(), "[backward] gradients of shapes ", sum.shape(), " and ",
        addend.shape(), " meet at one value");
  const Span span("sum of gradients", Phase::backward);
  Tensor result = sum.is_sole_owner() ? sum : empty_like(sum);
  dispatch(sum, [&](auto device, auto type) {
    using T = decltype(type);
    add(device, sum.elements(), sum.data<T>(), addend.data<T>(), result.data<T>());
  });
  sum = result;
}

/// Like accumulate, but the leaf's gradient ends up in storage of its own: an optimiser may scale it in
/// place.
void accumulate_leaf(Variable& leaf, Tensor gradient) {
  check(gradient.shape() == leaf.shape(), "[backward] a gradient of shape ", gradient.shape(),
        " for a leaf of shape ", leaf.shape());
  Tensor& sum = leaf.grad();
  if (sum.defined()) {
    accumulate(sum, std::move(gradient));
  } else {
    sum = std::move(gradient);
    if (sum.is_sole_owner()) return;
    const Span span("sum of gradients", Phase::backward);
    sum = sum.clone();
  }
}

}  // namespace

Node::Node(std::string_view name, std::vector<Edge> inputs, int outputs)
    : name_(name),
      place_(current_place()),
      inputs_(std::move(inputs)),
      outputs_(outputs),
      number_(next_number++) {}

Node::~Node() {
  // A chain of a million nodes must not be destroyed by a million nested destructors: the outermost one
  // collects the nodes that lose their last owner and lets them go one by one.
  thread_local std::vector<std::shared_ptr<Node>>* orphans = nullptr;
  std::vector<std::shared_ptr<Node>> mine;
  const bool outermost = orphans == nullptr;
  if (outermost) orphans = &mine;
  for (Edge& edge : inputs_) {
    if (edge.node != nullptr) orphans->push_back(std::move(edge.node));
  }
  if (!outermost) return;
  while (!mine.empty()) {
    const std::shared_ptr<Node> next = std::move(mine.back());
    mine.pop_back();
  }
  orphans = nullptr;
}

void backward(const std::vector<Variable>& roots, const Tensors& cotangents) {
  check(roots.size() == cotangents.size(), "[backward] ", roots.size(), " roots but ", cotangents.size(),
        " cotangents");
  struct Pending {
    std::shared_ptr<Node> node;
    Tensors gradients;  // of the node's outputs, as far as they have arrived
  };
  // By number: the node that is taken out, the newest, has no consumer left that could still add to it.
  std::map<uint64_t, Pending> pending;
  const auto send = [&](Edge& edge, Tensor gradient) {
    if (edge.node == nullptr) return accumulate_leaf(edge.leaf, std::move(gradient));
    Pending& entry = pending[edge.node->number()];
    if (entry.node == nullptr) {
      entry.node = edge.node;
      entry.gradients.resize(edge.node->outputs());
    }
    accumulate(entry.gradients[edge.output], std::move(gradient));
  };

  bool any = false;
  for (size_t i = 0; i < roots.size(); ++i) {
    const Variable& root = roots[i];
    Edge edge(root);
    if (!edge.wanted()) continue;
    any = true;
    check(cotangents[i].defined() || root.value().elements() == 1, "[backward] a root of shape ",
          root.shape(), " needs a cotangent; only a scalar has 1 as its default");
    Tensor cotangent = cotangents[i].defined()
                           ? cotangents[i]
                           : Tensor::full(root.shape(), 1, root.dtype(), root.value().device());
    check(cotangent.dtype() == root.dtype(), "[backward] a cotangent of ", cotangent.dtype(),
          " for a root of ", root.dtype());
    check(cotangent.device() == root.value().device(), "[backward] a cotangent on ", cotangent.device(),
          " for a root on ", root.value().device());
    check(cotangent.shape() == root.shape(), "[backward] a cotangent of shape ", cotangent.shape(),
          " for a root of shape ", root.shape());
    send(edge, std::move(cotangent));
  }
  check(any, "[backward] no root depends on anything that requires a gradient");

  while (!pending.empty()) {
    const auto newest = std::prev(pending.end());
    const Pending entry = std::move(newest->second);
    pending.erase(newest);
    Node& node = *entry.node;
    check(!node.spent_, "[backward] through '", node.name(),
          "' a second time: what it saved was freed by the first; run the forward pass again");
    node.spent_ = true;
    Tensors gradients = [&] {
      const Span span(node.name(), Phase::backward);
      Tensors result = node.backward(entry.gradients);
      node.release();
      return result;
    }();
    check(gradients.size() == node.inputs_.size(), "[backward] '", node.name(), "' returned ",
          gradients.size(), " gradients for ", node.inputs_.size(), " inputs");
    for (size_t input = 0; input < gradients.size(); ++input) {
      if (!node.inputs_[input].wanted()) continue;
      check(gradients[input].defined(), "[backward] '", node.name(), "' returned no gradient for input ",
            input);
      if (checking_finite()) {
        require_finite(gradients[input], node.place(), node.name(), str("the gradient of input ", input));
      }
      if (backward_hook) backward_hook(node.name(), static_cast<int>(input), gradients[input]);
      send(node.inputs_[input], std::move(gradients[input]));
    }
  }
}

void backward(const Variable& root) { backward({root}, {Tensor()}); }

void set_backward_hook(BackwardHook hook) { backward_hook = std::move(hook); }

}  // namespace mixgrad
