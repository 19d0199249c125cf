// The tape: the graph of ops that led to a value, and the walk back through it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/variable.h"

namespace mixgrad {

/// Where the gradient of a node's input goes: on to the node that computed it, into a leaf, or nowhere.
struct Edge {
  Edge() = default;
  explicit Edge(const Variable& input);

  bool wanted() const { return node != nullptr || leaf.defined(); }

  std::shared_ptr<Node> node;
  int output = 0;
  Variable leaf;
};

/// One application of an op. Holds what the op saved for its backward pass, but not its inputs' values.
class Node {
 public:
  Node(std::string_view name, std::vector<Edge> inputs, int outputs);
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Gradients of the inputs from those of the outputs. Either side may hold undefined tensors: an output
  /// that the loss doesn't depend on, an input that wants no gradient.
  virtual Tensors backward(const Tensors& output_gradients) = 0;
  /// Frees what was saved for backward.
  virtual void release() = 0;

  std::string_view name() const { return name_; }
  /// Where in a model it was applied, if its values were being checked (autograd/check_finite.h).
  const std::string& place() const { return place_; }
  int outputs() const { return outputs_; }
  /// Increases in the order of creation, so that every consumer of a node has a larger number than the node.
  uint64_t number() const { return number_; }

 private:
  friend void backward(const std::vector<Variable>&, const Tensors&);

  std::string_view name_;
  std::string place_;
  std::vector<Edge> inputs_;
  int outputs_;
  uint64_t number_;
  bool spent_ = false;
};

/// Adds to every leaf's grad() the gradient of sum over roots of <root, cotangent>.
///
/// Walks the graph without recursion, from the newest node to the oldest, and frees what each node saved as
/// it goes; walking the same graph again is an Error. An undefined cotangent stands for 1 and needs a root of
/// one element. Throws Error when no root has a history.
void backward(const std::vector<Variable>& roots, const Tensors& cotangents);
/// The same for one root: a loss.
void backward(const Variable& root);

/// Called with (op name, input number, gradient) after each op's backward and may replace the gradient: by it
/// the gradient checker breaks right gradients, to see that it notices. Empty: none.
using BackwardHook = std::function<void(std::string_view, int, Tensor&)>;
void set_backward_hook(BackwardHook hook);

}  // namespace mixgrad
