#include "autograd/ops/gma.h"

#include "autograd/ops/elementwise.h"

namespace mixgrad {

Recurrence gma(const Variable& q, const Variable& k, const Variable& v, const Variable& mean,
               const Variable& omega, const Variable& alpha, const GmaOptions& options,
               const Tensor& key_mask, const Variable& initial_state, const Variable& initial_normaliser) {
  return gma(q, k, v, mean, gmm_parameters(omega, alpha, options.floor), options, key_mask, initial_state,
             initial_normaliser);
}

Recurrence gma(const Variable& q, const Variable& k, const Variable& v, const Variable& mean,
               const GmmParameters& mixture, const GmaOptions& options, const Tensor& key_mask,
               const Variable& initial_state, const Variable& initial_normaliser) {
  const Variable read = gmm_posterior(q, mean, mixture);   // [B, T, H, K]
  const Variable write = gmm_posterior(k, mean, mixture);  // [B, Tk, H, K]
  // Both are masked, by selection: 0 times a value that is not finite would still be written.
  const auto masked = [&](const Variable& x) { return key_mask.defined() ? mask_rows(x, key_mask) : x; };
  const RecurrenceOptions recurrence_options{.causal = options.causal,
                                             .normalise = true,
                                             .eps = options.eps,
                                             .chunk = options.chunk,
                                             .final_state = options.final_state,
                                             .documents = options.documents};
  return recurrence(read, masked(write), masked(v), recurrence_options, {}, initial_state,
                    initial_normaliser);
}

std::vector<GradCase> gma_cases(CaseInputs& inputs) {
  using Inputs = const std::vector<Variable>&;
  const auto mixture_case = [&](std::string name, int64_t queries, int64_t keys) {
    return GradCase{std::move(name),
                    {inputs.normal("q", {2, queries, 2, 3}), inputs.normal("k", {2, keys, 2, 3}),
                     inputs.normal("v", {2, keys, 2, 4}), inputs.normal("mean", {2, 5, 3}, 0.8),
                     inputs.normal("omega", {2, 5, 3}), inputs.normal("alpha", {2, 5})},
                    {}};
  };
  GradCase causal = mixture_case("gma, causal, with states", 6, 6);
  causal.inputs.push_back(inputs.normal("initial_state", {2, 2, 5, 4}));
  causal.inputs.push_back(inputs.uniform("initial_normaliser", {2, 2, 5}, 0.2, 1));
  causal.function = [](Inputs in) {
    const Recurrence r = gma(in[0], in[1], in[2], in[3], in[4], in[5], {.chunk = 4}, {}, in[6], in[7]);
    return std::vector{r.output, r.state, r.normaliser};
  };
  GradCase masked = mixture_case("gma, all keys of another sequence but those masked", 3, 4);
  masked.function = [](Inputs in) {
    const Tensor mask = Tensor::from(std::vector<int32_t>{1, 0, 1, 1, 1, 1, 1, 0}, {2, 4});
    const GmaOptions options{.causal = false, .final_state = false};
    return std::vector{gma(in[0], in[1], in[2], in[3], in[4], in[5], options, mask).output};
  };
  return {causal, masked};
}

}  // namespace mixgrad
