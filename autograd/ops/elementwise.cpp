#include "autograd/ops/elementwise.h"

#include "autograd/arithmetic.h"
#include "autograd/op.h"

namespace mixgrad {

namespace {

/// y = F(x), dx = dy F'(x).
template <class F>
struct Unary {
  static constexpr std::string_view name = F::name;

  Tensor forward(Context& context, const Tensor& x) const {
    context.save(x);
    return mapped<F>(x);
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    return {mapped_backward<F>(context.saved(0), dy)};
  }
};

}  // namespace

Variable sigmoid(const Variable& x) { return apply(Unary<Sigmoid>{}, x); }
Variable log_sigmoid(const Variable& x) { return apply(Unary<LogSigmoid>{}, x); }
Variable softplus(const Variable& x) { return apply(Unary<Softplus>{}, x); }
Variable silu(const Variable& x) { return apply(Unary<Silu>{}, x); }
Variable gelu_erf(const Variable& x) { return apply(Unary<GeluErf>{}, x); }
Variable gelu_tanh(const Variable& x) { return apply(Unary<GeluTanh>{}, x); }
Variable exp(const Variable& x) { return apply(Unary<Exp>{}, x); }
Variable reciprocal(const Variable& x) { return apply(Unary<Reciprocal>{}, x); }
Variable elu_plus_one(const Variable& x) { return apply(Unary<EluPlusOne>{}, x); }

namespace {

/// y = a + b; da and db = dy, summed over repeated axes.
struct Add {
  static constexpr std::string_view name = "add";
  Shape a_shape;
  Shape b_shape;

  Tensor forward(Context&, const Tensor& a, const Tensor& b) const { return plus(a, b); }

  Tensors backward(const Context& context, const Tensor& dy) const {
    return {context.wants(0) ? summed_to(a_shape, dy) : Tensor(),
            context.wants(1) ? summed_to(b_shape, dy) : Tensor()};
  }
};

/// y = a b; da = dy b and db = dy a, summed over repeated axes. Saved: a, b.
struct Multiply {
  static constexpr std::string_view name = "multiply";

  Tensor forward(Context& context, const Tensor& a, const Tensor& b) const {
    context.save(a);
    context.save(b);
    return times(a, b);
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor& a = context.saved(0);
    const Tensor& b = context.saved(1);
    return {context.wants(0) ? summed_to(a.shape(), times(dy, b)) : Tensor(),
            context.wants(1) ? summed_to(b.shape(), times(dy, a)) : Tensor()};
  }
};

/// y = silu(a) b; da = dy b silu'(a), db = dy silu(a). Saved: a, b.
struct Swiglu {
  static constexpr std::string_view name = "swiglu";

  Tensor forward(Context& context, const Tensor& a, const Tensor& b) const {
    context.save(a);
    context.save(b);
    Tensor y = empty_like(a);
    dispatch(a, [&](auto device, auto type) {
      using T = decltype(type);
      swiglu_forward(device, a.elements(), a.data<T>(), b.data<T>(), y.data<T>());
    });
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor& a = context.saved(0);
    const Tensor& b = context.saved(1);
    Tensor da = context.wants(0) ? empty_like(a) : Tensor();
    Tensor db = context.wants(1) ? empty_like(b) : Tensor();
    dispatch(a, [&](auto device, auto type) {
      using T = decltype(type);
      swiglu_backward(device, a.elements(), a.data<T>(), b.data<T>(), dy.data<T>(), da.data_or_null<T>(),
                      db.data_or_null<T>());
    });
    return {da, db};
  }
};

/// y = factor x
struct Scale {
  static constexpr std::string_view name = "scale";
  double factor;

  Tensor forward(Context&, const Tensor& x) const { return times(factor, x); }
  Tensors backward(const Context&, const Tensor& dy) const { return {times(factor, dy)}; }
};

/// y = sum of x; dx = dy everywhere.
struct Sum {
  static constexpr std::string_view name = "sum";
  Shape shape;

  Tensor forward(Context&, const Tensor& x) const {
    Tensor y = Tensor::empty({}, x.dtype(), x.device());
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      sum_all(device, x.elements(), x.data<T>(), y.data<T>());
    });
    return y;
  }

  Tensors backward(const Context&, const Tensor& dy) const {
    return {Tensor::full(shape, dy.item(), dy.dtype(), dy.device())};
  }
};

struct Reshape {
  static constexpr std::string_view name = "reshape";
  Shape from;
  Shape to;

  Tensor forward(Context&, const Tensor& x) const { return x.reshape(to); }
  Tensors backward(const Context&, const Tensor& dy) const { return {dy.reshape(from)}; }
};

/// y = x mask / (1 - rate); dx = dy mask / (1 - rate), the mask drawn again from the same place. Saved:
/// nothing.
struct Dropout {
  static constexpr std::string_view name = "dropout";
  double rate;
  Generator generator;
  uint64_t first_block;

  Tensor forward(Context&, const Tensor& x) const { return masked(x); }
  Tensors backward(const Context&, const Tensor& dy) const { return {masked(dy)}; }

  Tensor masked(const Tensor& x) const {
    Tensor y = empty_like(x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      dropout(device, x.elements(), static_cast<float>(rate), generator, first_block, x.data<T>(),
              y.data<T>());
    });
    return y;
  }
};

/// y = mask ? x : 0; dx = mask ? dy : 0.
struct MaskRows {
  static constexpr std::string_view name = "mask_rows";
  Tensor mask;

  Tensor forward(Context&, const Tensor& x) const { return masked(x); }
  Tensors backward(const Context&, const Tensor& dy) const { return {masked(dy)}; }

  Tensor masked(const Tensor& x) const {
    const int64_t rows = mask.elements();
    Tensor y = empty_like(x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      mask_rows(device, rows, rows > 0 ? x.elements() / rows : 0, mask.data<int32_t>(), x.data<T>(),
                y.data<T>());
    });
    return y;
  }
};

}  // namespace

Variable add(const Variable& a, const Variable& b) { return apply(Add{a.shape(), b.shape()}, a, b); }
Variable multiply(const Variable& a, const Variable& b) { return apply(Multiply{}, a, b); }
Variable swiglu(const Variable& a, const Variable& b) {
  check(a.shape() == b.shape(), "[swiglu] a ", a.shape(), " and b ", b.shape(),
        "; they must have the same shape");
  return apply(Swiglu{}, a, b);
}

Variable scale(const Variable& x, double factor) { return apply(Scale{factor}, x); }
Variable add_scalar(const Variable& x, double offset) {
  return add(x, Variable(Tensor::full({}, offset, x.dtype(), x.value().device())));
}
Variable sum(const Variable& x) { return apply(Sum{x.shape()}, x); }
Variable reshape(const Variable& x, const Shape& shape) { return apply(Reshape{x.shape(), shape}, x); }

Variable dropout(const Variable& x, double rate, Generator& generator) {
  check_usage(rate >= 0 && rate < 1, "[dropout] rate ", rate, "; allowed: 0 <= rate < 1");
  if (rate == 0) return x;
  const uint64_t first_block = generator.reserve((x.value().elements() + 3) / 4);
  return apply(Dropout{rate, generator, first_block}, x);
}

Variable mask_rows(const Variable& x, const Tensor& mask) {
  bool leads = mask.shape().rank() <= x.shape().rank();
  for (int axis = 0; leads && axis < mask.shape().rank(); ++axis)
    leads = mask.shape()[axis] == x.shape()[axis];
  check(leads, "[mask_rows] mask ", mask.shape(), " is not made of the leading axes of x ", x.shape());
  return apply(MaskRows{mask.to(x.value().device())}, x);
}

std::vector<GradCase> elementwise_cases(CaseInputs& inputs) {
  using Inputs = const std::vector<Variable>&;
  const auto unary = [&](std::string name, Variable (*op)(const Variable&)) {
    return GradCase{
        name, {inputs.normal("x", {3, 5}, 2)}, [op](Inputs in) { return std::vector{op(in[0])}; }};
  };
  std::vector<GradCase> cases = {
      unary("sigmoid", sigmoid), unary("log_sigmoid", log_sigmoid),   unary("softplus", softplus),
      unary("silu", silu),       unary("gelu_erf", gelu_erf),         unary("gelu_tanh", gelu_tanh),
      unary("exp", exp),         unary("elu_plus_one", elu_plus_one), unary("sum", sum),
  };
  cases.push_back({"reciprocal", {inputs.uniform("x", {3, 5}, 0.5, 3)}, [](Inputs in) {
                     return std::vector{reciprocal(in[0])};
                   }});
  cases.push_back({"add, both repeated",
                   {inputs.normal("a", {2, 1, 4}), inputs.normal("b", {3, 1})},
                   [](Inputs in) { return std::vector{add(in[0], in[1])}; }});
  cases.push_back({"add, same shape",
                   {inputs.normal("a", {2, 3}), inputs.normal("b", {2, 3})},
                   [](Inputs in) { return std::vector{add(in[0], in[1])}; }});
  cases.push_back({"add, one operand twice", {inputs.normal("a", {2, 3})}, [](Inputs in) {
                     return std::vector{add(in[0], in[0])};
                   }});
  cases.push_back({"multiply, both repeated",
                   {inputs.normal("a", {2, 1, 4}), inputs.normal("b", {3, 1})},
                   [](Inputs in) { return std::vector{multiply(in[0], in[1])}; }});
  cases.push_back({"multiply, one operand twice", {inputs.normal("a", {2, 3})}, [](Inputs in) {
                     return std::vector{multiply(in[0], in[0])};
                   }});
  cases.push_back({"swiglu", {inputs.normal("a", {3, 5}, 2), inputs.normal("b", {3, 5})}, [](Inputs in) {
                     return std::vector{swiglu(in[0], in[1])};
                   }});
  cases.push_back(
      {"scale", {inputs.normal("x", {7})}, [](Inputs in) { return std::vector{scale(in[0], -2.5)}; }});
  cases.push_back(
      {"add_scalar", {inputs.normal("x", {7})}, [](Inputs in) { return std::vector{add_scalar(in[0], 3)}; }});
  cases.push_back({"reshape", {inputs.normal("x", {2, 6})}, [](Inputs in) {
                     return std::vector{reshape(in[0], {3, 4})};
                   }});
  cases.push_back({"dropout", {inputs.normal("x", {5, 7})}, [](Inputs in) {
                     Generator generator(5,
                                         Stream::dropout);  // anew for each call: the function must be pure
                     return std::vector{dropout(in[0], 0.3, generator)};
                   }});
  cases.push_back({"mask_rows", {inputs.normal("x", {2, 3, 4})}, [](Inputs in) {
                     const Tensor mask = Tensor::from(std::vector<int32_t>{1, 0, 1, 1, 1, 0}, {2, 3});
                     return std::vector{mask_rows(in[0], mask)};
                   }});
  return cases;
}

}  // namespace mixgrad
