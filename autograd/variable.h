// Variable: a tensor that remembers how it was computed, so that gradients can flow back through it.
#pragma once

#include <memory>
#include <vector>

#include "tensor/tensor.h"

namespace mixgrad {

class Node;

/// A handle, like Tensor: copies share value, gradient and history. Undefined by default ("not given").
class Variable {
 public:
  Variable() = default;
  /// A leaf: an input or a parameter. With requires_grad its gradient is kept by backward().
  explicit Variable(Tensor value, bool requires_grad = false);
  /// The result of an op: output number `output` of `node`. Made by apply() alone.
  Variable(Tensor value, std::shared_ptr<Node> node, int output);

  bool defined() const { return state_ != nullptr; }
  /// An undefined Variable has an undefined value.
  const Tensor& value() const;
  /// To write the values in place: for optimisers, initialisation and loading.
  Tensor& value();
  const Shape& shape() const { return value().shape(); }
  DType dtype() const { return value().dtype(); }

  /// Whether a gradient flows to it: a leaf that wants one, or computed from one.
  bool requires_grad() const;
  /// The gradient that backward() has added up for a leaf; undefined before.
  const Tensor& grad() const;
  Tensor& grad();
  void zero_grad();

  /// The same value, cut off from its history.
  Variable detach() const { return Variable(value()); }

 private:
  friend struct Edge;
  friend class InnerTape;
  struct State;
  std::shared_ptr<State> state_;
};

struct Variable::State {
  Tensor value;
  Tensor grad;
  bool requires_grad = false;
  std::shared_ptr<Node> node;  // the op application that computed it; null for a leaf
  int output = 0;              // which output of the node it is
};

/// While an object of this class lives, ops of this thread record nothing.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

/// A tape inside of a forward pass: while an object of this class lives, ops of this thread record, under
/// NoGrad too, and of all leaves only the given ones require a gradient. What has a history from before must
/// be detached first.
class InnerTape {
 public:
  explicit InnerTape(std::vector<Variable> leaves);
  ~InnerTape();
  InnerTape(const InnerTape&) = delete;
  InnerTape& operator=(const InnerTape&) = delete;

  /// Whether it is one of the given leaves.
  bool wants(const Variable& leaf) const;

 private:
  std::vector<Variable> leaves_;
  InnerTape* outer_;
  bool was_recording_;
};

/// Whether ops of this thread record their history: true outside of every NoGrad, and in an InnerTape.
bool recording();

}  // namespace mixgrad
