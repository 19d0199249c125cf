// What the ops of test-time training have in common: the rates of a mini-batch, and a linear layer of the
// network that learns.
#pragma once

#include <string_view>

#include "autograd/learning/descent.h"
#include "autograd/variable.h"

namespace mixgrad {

/// Throws Error unless these go together: q, k, v [B, T, H, d], rate [B, T, H], gamma, beta [H, d], row [M];
/// UsageError unless M is 1 or more.
void check_ttt_inputs(std::string_view op, const Shape& q, const Shape& k, const Shape& v, const Shape& rate,
                      const Shape& gamma, const Shape& beta, const Shape& row, int64_t mini_batch);

/// The rates of a mini-batch of m tokens: R_ij = row_i for j <= i, else 0.
struct TttRates {
  Tensor matrix;  // R [m, m]
  Tensor last;    // its last row, as a column [m, 1]: what stays
};
/// row [M], of which the first m count.
TttRates ttt_rates(const Tensor& row, int64_t m);
/// The gradient of row.
Tensor ttt_rates_backward(const Tensor& row, const TttRates& drates);

/// A layer of weight W [B, H, I, O] and bias b [B, H, 1, O] in one mini-batch.
struct TttLayer {
  DescentRead read;
  Tensor output;        // what it gives for the queries [B, H, n, O]
  Tensor weight, bias;  // behind the mini-batch
};
/// q [B, H, n, I] of the last n tokens, inputs x [B, H, m, I], errors e [B, H, m, O].
TttLayer ttt_layer(const Tensor& q, const Tensor& x, const Tensor& e, const Tensor& weight,
                   const Tensor& bias, const TttRates& rates);
/// dweight and dbias are the gradients behind the mini-batch, and become those before it, but for what the
/// errors owe to the weights. Adds to drates.
DescentGradients ttt_layer_backward(const TttLayer& layer, const Tensor& q, const Tensor& x, const Tensor& e,
                                    const Tensor& weight, const TttRates& rates, const Tensor& doutput,
                                    Tensor& dweight, Tensor& dbias, TttRates& drates);

}  // namespace mixgrad
