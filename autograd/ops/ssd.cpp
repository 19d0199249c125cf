#include "autograd/ops/ssd.h"

#include "autograd/ops/elementwise.h"

namespace mixgrad {

Recurrence ssd(const Variable& x, const Variable& dt, const Variable& log_decay, const Variable& B,
               const Variable& C, const Variable& D, const RecurrenceOptions& options,
               const Variable& initial_state) {
  const Shape& s = x.shape();
  check(s.rank() == 4 && dt.shape() == Shape{s[0], s[1], s[2]}, "[ssd] x ", s, " and dt ", dt.shape(),
        "; allowed: [B, T, H, P] and [B, T, H]");
  check(!D.defined() || D.shape() == Shape{s[2]}, "[ssd] D ", D.shape(), " for x ", s, "; allowed: [H]");
  const Variable written = multiply(x, reshape(dt, {s[0], s[1], s[2], 1}));
  Recurrence read = recurrence(C, B, written, options, log_decay, initial_state);
  if (D.defined()) read.output = add(read.output, multiply(x, reshape(D, {s[2], 1})));
  return read;
}

std::vector<GradCase> ssd_cases(CaseInputs& inputs) {
  GradCase result{
      "ssd, groups, skip and states",
      {inputs.normal("x", {2, 5, 4, 3}), inputs.uniform("dt", {2, 5, 4}, 0.1, 1),
       inputs.uniform("log_decay", {2, 5, 4}, -2, -0.1), inputs.normal("B", {2, 5, 2, 2}),
       inputs.normal("C", {2, 5, 2, 2}), inputs.normal("D", {4}), inputs.normal("state", {2, 4, 2, 3})},
      {}};
  result.function = [](const std::vector<Variable>& in) {
    const Recurrence r = ssd(in[0], in[1], in[2], in[3], in[4], in[5], {.chunk = 4}, in[6]);
    return std::vector{r.output, r.state};
  };
  return {result};
}

}  // namespace mixgrad
