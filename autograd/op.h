// The contract of a differentiable op, and apply(), which runs one and records it.
//
// An op is a struct with its options as members:
//
//   struct Scale {
//     static constexpr std::string_view name = "scale";
//     double factor;
//
//     // Returns a Tensor, or Tensors for several outputs.
//     Tensor forward(Context&, const Tensor& x) const;
//
//     // One gradient for each input, in their order.
//     Tensors backward(const Context&, const Tensor& dy) const;
//   };
//
//   Variable scale(const Variable& x, double factor) { return apply(Scale{factor}, x); }
//
// Options may be integer tensors that hold no gradient (ids, targets, masks, positions, documents): users may
// have them on any device, and the function that calls apply() takes them to that of the inputs.
//
// Forward saves in the context what backward needs. Backward only returns gradients; the engine adds them up.
// An op of several outputs gets Tensors instead of dy; those that the loss doesn't depend on are undefined. A
// gradient that context.wants(input) denies may be left undefined. An op without a backward can't be applied
// to an input that requires a gradient: it throws, so that no gradient vanishes in silence.
#pragma once

#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <utility>

#include "autograd/check_finite.h"
#include "autograd/profile.h"
#include "autograd/tape.h"
#include "autograd/variable.h"

namespace mixgrad {

/// What one application of an op carries from its forward to its backward pass.
class Context {
 public:
  explicit Context(std::vector<bool> wants) : wants_(std::move(wants)) {}

  /// Keeps a tensor for backward, when there will be one.
  void save(const Tensor& tensor) { saved_.push_back(recording() ? tensor : Tensor()); }
  /// The tensor of the index-th save().
  const Tensor& saved(int index) const { return saved_.at(index); }
  /// Whether anybody wants the gradient of this input.
  bool wants(int input) const { return wants_.at(input); }
  /// Whether a backward pass can follow: else there is no need to prepare for it.
  bool recording() const {
    for (const bool wanted : wants_) {
      if (wanted) return true;
    }
    return false;
  }
  void release() { saved_.clear(); }

 private:
  std::vector<bool> wants_;
  Tensors saved_;
};

template <class Op>
concept HasBackward = requires {
  &Op::backward;
};

template <class Op>
class OpNode final : public Node {
 public:
  OpNode(Op op, Context context, std::vector<Edge> inputs, int outputs)
      : Node(Op::name, std::move(inputs), outputs), op_(std::move(op)), context_(std::move(context)) {}

  Tensors backward(const Tensors& output_gradients) override {
    if constexpr (requires { op_.backward(context_, output_gradients[0]); }) {
      return op_.backward(context_, output_gradients[0]);
    } else {
      return op_.backward(context_, output_gradients);
    }
  }
  void release() override { context_.release(); }

 private:
  Op op_;
  Context context_;
};

/// Throws Error unless all defined inputs of an op have one element type and device.
void check_same_type(std::string_view op, std::initializer_list<const Tensor*> inputs);

/// Runs an op on its inputs and, where one of them requires a gradient, records it. An undefined Variable
/// reaches the op as an undefined Tensor. Returns a Variable, or a vector of them, as forward returns one
/// tensor or several.
template <class Op, class... Inputs>
auto apply(Op op, const Inputs&... inputs) {
  check_same_type(Op::name, {&inputs.value()...});
  Context context({(recording() && inputs.requires_grad())...});
  auto result = [&] {
    const Span span(Op::name, Phase::forward);
    return op.forward(context, inputs.value()...);
  }();
  constexpr bool single = std::is_same_v<decltype(result), Tensor>;
  const Tensors outputs = [&] {
    if constexpr (single)
      return Tensors{std::move(result)};
    else
      return std::move(result);
  }();

  if (checking_finite()) {
    for (size_t i = 0; i < outputs.size(); ++i)
      require_finite(outputs[i], current_place(), Op::name, str("output ", i));
  }

  std::vector<Variable> variables;
  if (!context.recording()) {
    for (const Tensor& output : outputs) variables.emplace_back(output);
  } else if constexpr (HasBackward<Op>) {
    const auto node =
        std::make_shared<OpNode<Op>>(std::move(op), std::move(context), std::vector<Edge>{Edge(inputs)...},
                                     static_cast<int>(outputs.size()));
    for (size_t i = 0; i < outputs.size(); ++i) variables.emplace_back(outputs[i], node, static_cast<int>(i));
  } else {
    throw Error(str("[", Op::name,
                    "] has no backward, but an input requires a gradient; detach it, or compute ",
                    "under NoGrad"));
  }
  if constexpr (single)
    return variables[0];
  else
    return variables;
}

}  // namespace mixgrad
