// Test-time training with a network of two layers: its weights learn from the tokens that are read.
#pragma once

#include "autograd/ops/ttt_linear.h"

namespace mixgrad {

/// A network from d numbers to d by way of F: GELU(x W1 + b1) W2 + b2, GELU by its tanh approximation.
struct TttNetwork {
  Variable weight1;  // [B, H, d, F]
  Variable bias1;    // [B, H, F]
  Variable weight2;  // [B, H, F, d]
  Variable bias2;    // [B, H, d]
};

/// What reading with it returns.
struct TttMlp {
  Variable output;     // [B, T, H, d]
  TttNetwork network;  // behind the last token
};

/// As ttt_linear(), with the network in the place of the linear layer. What a token's loss does to the
/// weights of the first layer follows from the weights of the second at the begin of its mini-batch.
///
/// Saved for backward: the inputs, and the network of every eighth mini-batch. Forward about 2 T (6 d F + 2 M
/// F) FLOPs a head, backward four times that. Sun et al., 2024 (arXiv 2407.04620). Throws Error for shapes
/// that do not go together.
TttMlp ttt_mlp(const Variable& q, const Variable& k, const Variable& v, const Variable& rate,
               const Variable& gamma, const Variable& beta, const Variable& row, const TttNetwork& network,
               const TttOptions& options = {});

/// The same without gradients and piece by piece: the output for tokens that follow on `position` others.
/// memory is what is known of these, {W1 [B, H, d, F], b1 [B, H, 1, F], W2 [B, H, F, d], b2 [B, H, 1, d], k,
/// v [B, M, H, d], rate [B, M, H]}: the weights before the mini-batch that is being read, and its tokens so
/// far.
Tensor ttt_mlp_read_on(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rate,
                       const Tensor& gamma, const Tensor& beta, const Tensor& row, const TttOptions& options,
                       int64_t position, Tensors& memory);

std::vector<GradCase> ttt_mlp_cases(CaseInputs& inputs);

}  // namespace mixgrad
