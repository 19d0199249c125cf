#include "autograd/ops/softmax.h"

#include <algorithm>

#include "autograd/op.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/elementwise.h"
#include "tensor/kernels/gemm.h"
#include "tensor/kernels/softmax.h"

namespace mixgrad {

namespace {

/// y = exp(x) / sum exp(x), dx = y (dy - sum dy y).
struct SoftmaxKernels {
  static constexpr std::string_view name = "softmax";
  static void forward(auto... arguments) { softmax_forward(arguments...); }
  static void backward(auto... arguments) { softmax_backward(arguments...); }
};

/// y = x - log sum exp(x), dx = dy - exp(y) sum dy.
struct LogSoftmaxKernels {
  static constexpr std::string_view name = "log_softmax";
  static void forward(auto... arguments) { log_softmax_forward(arguments...); }
  static void backward(auto... arguments) { log_softmax_backward(arguments...); }
};

/// A map of rows to rows whose backward needs what came out.
template <class Kernels>
struct RowMap {
  static constexpr std::string_view name = Kernels::name;

  Tensor forward(Context& context, const Tensor& x) const {
    Tensor y = empty_like(x);
    dispatch(x, [&](auto device, auto type) {
      using T = decltype(type);
      Kernels::forward(device, x.shape().rows(), x.shape().columns(), x.data<T>(), y.data<T>());
    });
    context.save(y);
    return y;
  }

  Tensors backward(const Context& context, const Tensor& dy) const {
    const Tensor& y = context.saved(0);
    Tensor dx = empty_like(y);
    dispatch(y, [&](auto device, auto type) {
      using T = decltype(type);
      Kernels::backward(device, y.shape().rows(), y.shape().columns(), y.data<T>(), dy.data<T>(),
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

/// loss = mean of log sum exp(logits) - logits[target], dlogits = dloss (softmax - onehot) / counted.
struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  CrossEntropyShape shape;
  int64_t counted;
  Tensor targets;

  Tensor forward(Context& context, const Tensor& logits) const {
    Tensor nats = Tensor::empty({}, DType::float64, logits.device());
    Tensor maximum = Tensor::empty(targets.shape(), logits.dtype(), logits.device());
    Tensor normaliser = empty_like(maximum);
    dispatch(logits, [&](auto device, auto type) {
      using T = decltype(type);
      cross_entropy_forward(device, shape, logits.data<T>(), targets.data<int32_t>(), maximum.data<T>(),
                            normaliser.data<T>(), nats.data<double>());
    });
    context.save(logits);
    context.save(maximum);
    context.save(normaliser);
    return Tensor::full({}, nats.item() / static_cast<double>(counted), logits.dtype(), logits.device());
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

/// What linear_cross_entropy computes in one pass over the rows.
struct LossAndGradients {
  double nats = 0;
  Tensor dx, dweight;
};

/// Rows whose logits exist at a time, evenly many: as fit into 64 MiB, where the products are as fast as
/// those of all rows.
int64_t rows_at_a_time(const CrossEntropyShape& shape, DType dtype) {
  constexpr int64_t most_bytes = int64_t{64} << 20;
  const int64_t row_bytes = std::max<int64_t>(1, shape.vocabulary) * size_bytes(dtype);
  const int64_t most_rows = std::max<int64_t>(1, most_bytes / row_bytes);
  const int64_t blocks = std::max<int64_t>(1, (shape.rows + most_rows - 1) / most_rows);
  return std::max<int64_t>(1, (shape.rows + blocks - 1) / blocks);
}

/// The sum of the rows' losses, and `factor` times its gradients, as far as they are wanted. x [N, D].
LossAndGradients nats_of_linear(const CrossEntropyShape& shape, double factor, const Tensor& x,
                                const Tensor& weight, const Tensor& targets, bool want_dx,
                                bool want_dweight) {
  const int64_t width = weight.shape()[1];
  LossAndGradients result;
  if (want_dx) result.dx = empty_like(x);
  if (want_dweight) result.dweight = empty_like(weight);
  const int64_t block = rows_at_a_time(shape, x.dtype());
  Tensor logits = Tensor::empty({block, shape.vocabulary}, x.dtype(), x.device());
  Tensor nats = Tensor::empty({shape.rows}, DType::float64, x.device());
  dispatch(x, [&](auto device, auto type) {
    using T = decltype(type);
    T* y = logits.data<T>();
    for (int64_t begin = 0; begin < shape.rows; begin += block) {
      const CrossEntropyShape part{std::min(block, shape.rows - begin), shape.vocabulary, shape.ignore_index};
      const T* rows = x.data<T>() + begin * width;
      gemm(device, {.m = part.rows, .n = shape.vocabulary, .k = width, .b = Transpose::yes}, T(1), rows,
           weight.data<T>(), T(0), y);
      cross_entropy_in_place(device, part, static_cast<T>(factor), targets.data<int32_t>() + begin, y,
                             nats.data<double>() + begin);
      if (want_dx) {
        gemm(device, {.m = part.rows, .n = width, .k = shape.vocabulary}, T(1), y, weight.data<T>(), T(0),
             result.dx.data<T>() + begin * width);
      }
      if (want_dweight) {
        gemm(device, {.m = shape.vocabulary, .n = width, .k = part.rows, .a = Transpose::yes}, T(1), y, rows,
             begin == 0 ? T(0) : T(1), result.dweight.data<T>());
      }
    }
    Tensor total = Tensor::empty({}, DType::float64, x.device());
    sum_all(device, shape.rows, nats.data<double>(), total.data<double>());
    result.nats = total.item();
  });
  return result;
}

/// loss = mean of log sum exp(y) - y[target] with y = x W^T; dy = (softmax(y) - onehot) / counted, dx = dy W,
/// dW = dy^T x.
///
/// dy of a block of rows needs only the logits of these rows, and dloss is one number that scales everything:
/// forward computes the gradients for dloss = 1, while it has the logits.
struct LinearCrossEntropy {
  static constexpr std::string_view name = "linear_cross_entropy";
  CrossEntropyShape shape;
  int64_t counted;
  Tensor targets;

  Tensor forward(Context& context, const Tensor& x, const Tensor& weight) const {
    const auto count = static_cast<double>(counted);
    const LossAndGradients result =
        nats_of_linear(shape, 1 / count, x, weight, targets, context.wants(0), context.wants(1));
    context.save(result.dx);
    context.save(result.dweight);
    return Tensor::full({}, result.nats / count, x.dtype(), x.device());
  }

  Tensors backward(const Context& context, const Tensor& dloss) const {
    Tensors gradients = {context.saved(0), context.saved(1)};
    const double factor = dloss.item();
    for (Tensor& gradient : gradients) {
      if (!gradient.defined() || factor == 1) continue;
      // In place: nobody has seen it, and there is no second backward.
      dispatch(gradient, [&](auto device, auto type) {
        using T = decltype(type);
        scale(device, gradient.elements(), static_cast<T>(factor), gradient.data<T>(), gradient.data<T>());
      });
    }
    return gradients;
  }
};

CrossEntropyShape checked_shape(const Variable& logits, const Tensor& targets, int32_t ignore_index) {
  check(logits.shape().rank() >= 1 && logits.shape().drop_last() == targets.shape(),
        "[cross_entropy] logits ", logits.shape(), " and targets ", targets.shape(),
        ": they must be [..., V] and [...]");
  return {logits.shape().rows(), logits.shape().columns(), ignore_index};
}

CrossEntropyShape checked_shape(const Variable& x, const Variable& weight, const Tensor& targets,
                                int32_t ignore_index) {
  check(x.shape().rank() >= 1 && weight.shape().rank() == 2 && x.shape()[-1] == weight.shape()[1] &&
            x.shape().drop_last() == targets.shape(),
        "[linear_cross_entropy] x ", x.shape(), ", weight ", weight.shape(), " and targets ", targets.shape(),
        ": they must be [..., D], [V, D] and [...]");
  return {x.shape().rows(), weight.shape()[0], ignore_index};
}

/// How many targets count. Throws Error when one is outside the vocabulary.
int64_t checked_count(std::string_view op, const CrossEntropyShape& shape, const Variable& x,
                      const Tensor& targets) {
  TargetSurvey survey;
  dispatch(x.value(),
           [&](auto device, auto) { survey = survey_targets(device, shape, targets.data<int32_t>()); });
  if (survey.first_invalid >= 0) {
    const int64_t row = survey.first_invalid;
    const auto target = static_cast<int64_t>(targets.reshape({shape.rows}).narrow(0, row, 1).item());
    throw Error(str("[", op, "] target ", target, " in row ", row, "; allowed: 0 to ", shape.vocabulary - 1,
                    " (V = ", shape.vocabulary, "), or ", shape.ignore_index, " to ignore the row"));
  }
  return survey.counted;
}

/// The same for a mean, which needs one.
int64_t checked_count_of_mean(std::string_view op, const CrossEntropyShape& shape, const Variable& x,
                              const Tensor& targets) {
  const int64_t counted = checked_count(op, shape, x, targets);
  check(counted > 0, "[", op, "] no target counts: ", shape.rows, " rows, all of them ignored (",
        shape.ignore_index, "); the mean needs at least 1");
  return counted;
}

void check_has_axis(std::string_view op, const Variable& x) {
  check(x.shape().rank() >= 1, "[", op, "] x is a scalar; it needs a last axis");
}

}  // namespace

Variable softmax(const Variable& x) {
  check_has_axis(SoftmaxKernels::name, x);
  return apply(RowMap<SoftmaxKernels>{}, x);
}

Variable log_softmax(const Variable& x) {
  check_has_axis(LogSoftmaxKernels::name, x);
  return apply(RowMap<LogSoftmaxKernels>{}, x);
}

Variable logsumexp(const Variable& x) {
  check_has_axis(LogSumExp::name, x);
  return apply(LogSumExp{}, x);
}

Variable cross_entropy(const Variable& logits, const Tensor& given_targets, int32_t ignore_index) {
  const Tensor targets = given_targets.to(logits.value().device());
  const CrossEntropyShape shape = checked_shape(logits, targets, ignore_index);
  const int64_t counted = checked_count_of_mean(CrossEntropy::name, shape, logits, targets);
  return apply(CrossEntropy{shape, counted, targets}, logits);
}

Variable linear_cross_entropy(const Variable& x, const Variable& weight, const Tensor& given_targets,
                              int32_t ignore_index) {
  const Tensor targets = given_targets.to(x.value().device());
  const CrossEntropyShape shape = checked_shape(x, weight, targets, ignore_index);
  const int64_t counted = checked_count_of_mean(LinearCrossEntropy::name, shape, x, targets);
  return apply(LinearCrossEntropy{shape, counted, targets}, x, weight);
}

NatsOfTargets linear_cross_entropy_sum(const Variable& x, const Variable& weight, const Tensor& given_targets,
                                       int32_t ignore_index) {
  const Tensor targets = given_targets.to(x.value().device());
  const CrossEntropyShape shape = checked_shape(x, weight, targets, ignore_index);
  const int64_t counted = checked_count(LinearCrossEntropy::name, shape, x, targets);
  return {nats_of_linear(shape, 1, x.value(), weight.value(), targets, false, false).nats, counted};
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
      {"linear_cross_entropy with an ignored row",
       {inputs.normal("x", {2, 3, 4}), inputs.normal("weight", {7, 4})},
       [](Inputs in) {
         const Tensor targets =
             Tensor::from(std::vector<int32_t>{0, 6, -100, 2, 5, 1}, {2, 3}, in[0].value().device());
         return std::vector{linear_cross_entropy(in[0], in[1], targets)};
       }},
  };
}

}  // namespace mixgrad
