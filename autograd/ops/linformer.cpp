#include "autograd/ops/linformer.h"

#include "autograd/ops/elementwise.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/recurrence.h"
#include "autograd/ops/softmax.h"

namespace mixgrad {

namespace {

/// The first T rows of E for every head of every sequence, [B, T, H, R].
Variable rows_for(const Variable& E, int64_t batch, int64_t length, int64_t heads) {
  std::vector<int32_t> ids(batch * length * heads);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i / heads % length);
  return embedding(Tensor::from(ids, {batch, length, heads}, E.value().device()), E);
}

}  // namespace

Variable linformer(const Variable& q, const Variable& k, const Variable& v, const Variable& E,
                   const Variable& F, double scale, const Tensor& key_mask) {
  const Shape &keys = k.shape(), &values = v.shape();
  check(keys.rank() == 4 && values.rank() == 4 && values[0] == keys[0] && values[1] == keys[1] &&
            E.shape().rank() == 2 && (!F.defined() || F.shape() == E.shape()),
        "[linformer] k ", keys, ", v ", values, ", E ", E.shape(),
        "; allowed: [B, T, H, dk], [B, T, H, dv] and [N, R], F like E");
  check_usage(keys[1] <= E.shape()[0], "[linformer] ", keys[1], " tokens; allowed: up to its longest, ",
              E.shape()[0]);
  // Masked by selection: 0 times a value that is not finite would still be in the sum.
  const auto kept = [&](const Variable& x) { return key_mask.defined() ? mask_rows(x, key_mask) : x; };
  const auto rows = [&](const Variable& matrix) { return rows_for(matrix, keys[0], keys[1], keys[2]); };
  const RecurrenceOptions all{.causal = false, .final_state = false};
  // A product of three in two steps is what the recurrence computes: q (k^T E), and p (F^T v).
  const Variable scores = recurrence(q, kept(k), rows(E), all).output;  // [B, T, H, R]
  const Variable p = softmax(mixgrad::scale(scores, scale));
  return recurrence(p, rows(F.defined() ? F : E), kept(v), all).output;
}

std::vector<GradCase> linformer_cases(CaseInputs& inputs) {
  std::vector<GradInput> operands = {inputs.normal("q", {2, 4, 2, 3}), inputs.normal("k", {2, 4, 2, 3}),
                                     inputs.normal("v", {2, 4, 2, 2}), inputs.normal("E", {6, 3})};
  const Tensor mask = Tensor::from(std::vector<int32_t>{1, 0, 1, 1, 1, 1, 1, 0}, {2, 4});
  const GradCase shared{"linformer, one matrix for both, masked", operands,
                        [=](const std::vector<Variable>& in) {
                          return std::vector{linformer(in[0], in[1], in[2], in[3], {}, 0.5, mask)};
                        }};
  operands.push_back(inputs.normal("F", {6, 3}));
  return {shared, {"linformer, shorter than its longest", operands, [](const std::vector<Variable>& in) {
                     return std::vector{linformer(in[0], in[1], in[2], in[3], in[4], 0.5)};
                   }}};
}

}  // namespace mixgrad
