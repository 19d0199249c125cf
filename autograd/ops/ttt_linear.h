// Test-time training with a linear layer: its weights learn from the tokens that are read.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

struct TttOptions {
  int64_t mini_batch = 16;  // M, tokens whose gradients are taken at the same weights
  double eps = 1e-6;        // of the norm in the loss
};

/// What reading with a linear layer returns.
struct TttLinear {
  Variable output;  // [B, T, H, d]
  Variable weight;  // [B, H, d, d] behind the last token
  Variable bias;    // [B, H, d]
};

/// Tokens come in mini-batches of M, the last of which may be shorter. With W and b those before a mini-batch
/// and i counting its tokens from 0, each token has a loss that its key shall answer with its value,
///
///   l_j = |norm(k_j W + b) (.) gamma + beta - (v_j - k_j)|^2 / 2
///
/// and reads with the weights that all tokens up to it have descended to:
///
///   W_i = W - row_i sum over j <= i of rate_j dl_j/dW      b_i likewise      z_i = q_i W_i + b_i
///
/// W and b of the last token go on to the next mini-batch. output z; norm is layer norm without weights.
///
/// q, k, v [B, T, H, d]; rate [B, T, H]; gamma, beta [H, d]; row [M]; weight [B, H, d, d], bias [B, H, d].
/// Saved for backward: the inputs, and weight and bias of every eighth mini-batch. Forward about
/// 2 T (3 d^2 + 2 M d) FLOPs a head, backward four times that. Mini-batches are computed one after the other;
/// a future token never changes an earlier output by a bit. Sun et al., 2024 (arXiv 2407.04620). Throws Error
/// for shapes that do not go together.
TttLinear ttt_linear(const Variable& q, const Variable& k, const Variable& v, const Variable& rate,
                     const Variable& gamma, const Variable& beta, const Variable& row, const Variable& weight,
                     const Variable& bias, const TttOptions& options = {});

/// The same without gradients and piece by piece: the output for tokens that follow on `position` others.
/// memory is what is known of these, {W [B, H, d, d], b [B, H, 1, d], k, v [B, M, H, d], rate [B, M, H]}: the
/// weights before the mini-batch that is being read, and its tokens so far.
Tensor ttt_linear_read_on(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rate,
                          const Tensor& gamma, const Tensor& beta, const Tensor& row,
                          const TttOptions& options, int64_t position, Tensors& memory);

std::vector<GradCase> ttt_linear_cases(CaseInputs& inputs);

}  // namespace mixgrad
