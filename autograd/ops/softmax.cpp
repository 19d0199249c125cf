#include "autograd/ops/softmax.h"

#include "autograd/op.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/softmax.h"

namespace mixgrad {

namespace {

/// y = exp(x) / sum exp(x), dx = y (dy - sum dy y).
struct Softmax {
  static constexpr std::string_view name = "softmax";

  Tensor forward(Context& context, const Tensor& x) const {
    Tensor y = empty_like(x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      softmax_forward(device, x.shape().rows(), x.shape().columns(), x.data<T>(), y.data<T>());
    });
    context.save(y);
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor& y = context.saved(0);
    Tensor dx = empty_like(y);
    dispatch(y, [&](auto device, auto type) {
      using T = decltype(type);
      softmax_backward(device, y.shape().rows(), y.shape().columns(), y.data<T>(), dy.data<T>(),
                       dx.data<T>());
    });
    return {dx};
  }
};

/// y = x - log sum exp(x), dx = dy - exp(y) sum dy.
struct LogSoftmax {
  static constexpr std::string_view name = "log_softmax";

  Tensor forward(Context& context, const Tensor& x) const {
    Tensor y = empty_like(x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      log_softmax_forward(device, x.shape().rows(), x.shape().columns(), x.data<T>(), y.data<T>());
    });
    context.save(y);
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor& y = context.saved(0);
    Tensor dx = empty_like(y);
    dispatch(y, [&](auto device, auto type) {
      using T = decltype(type);
      log_softmax_backward(device, y.shape().rows(), y.shape().columns(), y.data<T>(), dy.data<T>(),
                           dx.data<T>());
    });
    return {dx};
  }
};

/// y = log sum exp(x), dx = dy softmax(x).
struct LogSumExp {
  static constexpr std::string_view name = "logsumexp";

  Tensor forward(Context& context, const Tensor& x) const {
    Tensor y = Tensor::empty(x.shape().drop_last(), x.dtype(), x.device());
    Tensor maximum = empty_like(y);
    Tensor sum = empty_like(y);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      logsumexp_forward(device, x.shape().rows(), x.shape().columns(), x.data<T>(), y.data<T>(),
                        maximum.data<T>(), sum.data<T>());
    });
    context.save(x);
    context.save(maximum);
    context.save(sum);
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor& x = context.saved(0);
    const Tensor& maximum = context.saved(1);
    const Tensor& sum = context.saved(2);
    Tensor dx = empty_like(x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      logsumexp_backward(device, x.shape().rows(), x.shape().columns(), x.data<T>(), maximum.data<T>(),
                         sum.data<T>(), dy.data<T>(), dx.data<T>());
    });
    return {dx};
  }
};

/// What the forward pass of a cross entropy finds.
struct Nats {
  Tensor sum;         // over the rows that count, float64, a scalar
  Tensor maximum;     // [...], of each row of logits
  Tensor normaliser;  // [...], sum of exp(logits - maximum)
};

Nats nats_of(const CrossEntropyShape& shape, const Tensor& logits, const Tensor& targets) {
  Nats nats;
  nats.sum = Tensor::empty({}, DType::float64, logits.device());
  nats.maximum = Tensor::empty(targets.shape(), logits.dtype(), logits.device());
  nats.normaliser = empty_like(nats.maximum);
  dispatch(logits, [&](auto device, auto type) {
    using T = decltype(type);
    cross_entropy_forward(device, shape, logits.data<T>(), targets.data<int32_t>(), nats.maximum.data<T>(),
                          nats.normaliser.data<T>(), nats.sum.data<double>());
  });
  return nats;
}

/// loss = mean of log sum exp(logits) - logits[target], dlogits = dloss (softmax - onehot) / counted.
struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  CrossEntropyShape shape;
  int64_t counted;
  Tensor targets;

  Tensor forward(Context& context, const Tensor& logits) const {
    const Nats nats = nats_of(shape, logits, targets);
    context.save(logits);
    context.save(nats.maximum);
    context.save(nats.normaliser);
    return Tensor::full({}, nats.sum.item() / static_cast<double>(counted), logits.dtype(), logits.device());
  }

  Tensors backward(const Context& context, const Tensor& dloss) const {
    const Tensor& logits = context.saved(0);
    const Tensor& maximum = context.saved(1);
    const Tensor& normaliser = context.saved(2);
    Tensor dlogits = empty_like(logits);
    dispatch(logits, [&](auto device, auto type) {
      using T = decltype(type);
      cross_entropy_backward(device, shape, counted, logits.data<T>(), targets.data<int32_t>(),
                             maximum.data<T>(), normaliser.data<T>(), dloss.data<T>(), dlogits.data<T>());
    });
    return {dlogits};
  }
};

CrossEntropyShape checked_shape(const Tensor& logits, const Tensor& targets, int32_t ignore_index) {
  check(logits.shape().rank() >= 1 && logits.shape().drop_last() == targets.shape(),
        "[cross_entropy] logits ", logits.shape(), " and targets ", targets.shape(),
        ": they must be [..., V] and [...]");
  return {logits.shape().rows(), logits.shape().columns(), ignore_index};
}

/// How many targets count. Throws Error when one is outside the vocabulary.
int64_t checked_count(const CrossEntropyShape& shape, const Tensor& logits, const Tensor& targets) {
  TargetSurvey survey;
  dispatch(logits,
           [&](auto device, auto) { survey = survey_targets(device, shape, targets.data<int32_t>()); });
  if (survey.first_invalid >= 0) {
    const int64_t row = survey.first_invalid;
    const auto target = static_cast<int64_t>(targets.reshape({shape.rows}).narrow(0, row, 1).item());
    throw Error(str("[cross_entropy] target ", target, " in row ", row, "; allowed: 0 to ",
                    shape.vocabulary - 1, " (V = ", shape.vocabulary, "), or ", shape.ignore_index,
                    " to ignore the row"));
  }
  return survey.counted;
}

void check_has_axis(std::string_view op, const Variable& x) {
  check(x.shape().rank() >= 1, "[", op, "] x is a scalar; it needs a last axis");
}

}  // namespace

Variable softmax(const Variable& x) {
  check_has_axis(Softmax::name, x);
  return apply(Softmax{}, x);
}

Variable log_softmax(const Variable& x) {
  check_has_axis(LogSoftmax::name, x);
  return apply(LogSoftmax{}, x);
}

Variable logsumexp(const Variable& x) {
  check_has_axis(LogSumExp::name, x);
  return apply(LogSumExp{}, x);
}

Variable cross_entropy(const Variable& logits, const Tensor& targets, int32_t ignore_index) {
  const CrossEntropyShape shape = checked_shape(logits.value(), targets, ignore_index);
  const int64_t counted = checked_count(shape, logits.value(), targets);
  check(counted > 0, "[cross_entropy] no target counts: ", shape.rows, " rows, all of them ignored (",
        ignore_index, "); the mean needs at least 1");
  return apply(CrossEntropy{shape, counted, targets}, logits);
}

double cross_entropy_sum(const Tensor& logits, const Tensor& targets, int32_t ignore_index,
                         int64_t* counted) {
  const CrossEntropyShape shape = checked_shape(logits, targets, ignore_index);
  const int64_t count = checked_count(shape, logits, targets);
  if (counted != nullptr) *counted = count;
  return nats_of(shape, logits, targets).sum.item();
}

std::vector<GradCase> softmax_cases(CaseInputs& inputs) {
  using Inputs = const std::vector<Variable>&;
  const auto along_rows = [&](std::string name, const Shape& shape, Variable (*op)(const Variable&)) {
    return GradCase{
        std::move(name), {inputs.normal("x", shape, 2)}, [op](Inputs in) { return std::vector{op(in[0])}; }};
  };
  return {
      along_rows("softmax", {2, 3, 5}, softmax),
      along_rows("softmax of long rows", {2, 37}, softmax),
      along_rows("log_softmax", {2, 3, 5}, log_softmax),
      along_rows("log_softmax of one row", {19}, log_softmax),
      along_rows("logsumexp", {2, 3, 5}, logsumexp),
      along_rows("logsumexp of one row", {19}, logsumexp),
      {"cross_entropy",
       {inputs.normal("logits", {2, 3, 7}, 2)},
       [](Inputs in) {
         const Tensor targets =
             Tensor::from(std::vector<int32_t>{0, 6, 2, 2, 5, 1}, {2, 3}, in[0].value().device());
         return std::vector{cross_entropy(in[0], targets)};
       }},
      {"cross_entropy with ignored rows",
       {inputs.normal("logits", {5, 4}, 2)},
       [](Inputs in) {
         const Tensor targets =
             Tensor::from(std::vector<int32_t>{3, -1, 0, -1, 1}, {5}, in[0].value().device());
         return std::vector{cross_entropy(in[0], targets, -1)};
       }},
  };
}

}  // namespace mixgrad
