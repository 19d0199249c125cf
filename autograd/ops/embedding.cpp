#include "autograd/ops/embedding.h"

#include "autograd/op.h"
#include "tensor/dispatch.h"
#include "tensor/kernels/embedding.h"

namespace mixgrad {

namespace {

/// y[i, :] = weight[ids[i], :], dweight[v, :] = sum of dy[i, :] over ids[i] = v.
struct Embedding {
  static constexpr std::string_view name = "embedding";
  EmbeddingShape shape;
  Tensor ids;

  Tensor forward(Context&, const Tensor& weight) const {
    Shape y_shape = ids.shape();
    y_shape.push_back(shape.columns);
    Tensor y = Tensor::empty(y_shape, weight.dtype(), weight.device());
    dispatch(weight, [&](auto device, auto type) {
      using T = decltype(type);
      embedding_forward(device, shape, ids.data<int32_t>(), weight.data<T>(), y.data<T>());
    });
    return y;
  }

  Tensors backward(const Context&, const Tensor& dy) const {
    Tensor dweight = Tensor::empty({shape.vocabulary, shape.columns}, dy.dtype(), dy.device());
    dispatch(dy, [&](auto device, auto type) {
      using T = decltype(type);
      embedding_backward(device, shape, ids.data<int32_t>(), dy.data<T>(), dweight.data<T>());
    });
    return {dweight};
  }
};

}  // namespace

Variable embedding(const Tensor& given_ids, const Variable& weight) {
  const Tensor ids = given_ids.to(weight.value().device());
  check(weight.shape().rank() == 2, "[embedding] weight ", weight.shape(), "; it must be [V, D]");
  const EmbeddingShape shape{ids.elements(), weight.shape()[0], weight.shape()[1]};
  int64_t invalid = -1;
  dispatch(weight.value(),
           [&](auto device, auto) { invalid = first_invalid_id(device, shape, ids.data<int32_t>()); });
  if (invalid >= 0) {
    const auto id = static_cast<int64_t>(ids.reshape({shape.count}).narrow(0, invalid, 1).item());
    throw Error(str("[embedding] id ", id, " at position ", invalid, " of ids ", ids.shape(),
                    "; allowed: 0 to ", shape.vocabulary - 1, " (V = ", shape.vocabulary, ")"));
  }
  return apply(Embedding{shape, ids}, weight);
}

std::vector<GradCase> embedding_cases(CaseInputs& inputs) {
  using Inputs = const std::vector<Variable>&;
  return {
      {"embedding, ids that repeat and rows that are not used",
       {inputs.normal("weight", {5, 3})},
       [](Inputs in) {
         const Tensor ids =
             Tensor::from(std::vector<int32_t>{4, 0, 4, 2, 4, 0}, {2, 3}, in[0].value().device());
         return std::vector{embedding(ids, in[0])};
       }},
      {"embedding of one id, wide",
       {inputs.normal("weight", {2, 71})},
       [](Inputs in) {
         const Tensor id = Tensor::from(std::vector<int32_t>{1}, {}, in[0].value().device());
         return std::vector{embedding(id, in[0])};
       }},
  };
}

}  // namespace mixgrad
