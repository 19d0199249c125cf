// Gradient descent with momentum and forgetting as part of a forward pass, and a linear layer without bias
// that learns by it.
//
// Gradients g_j, of m' tokens, are taken at the weights before a chunk. The m tokens of the chunk apply them,
// one after the other, token t as the sum over j of P_tj g_j:
//
//   S_t = e^{h_t} S_{t-1} - sum over j of P_tj g_j      W_t = e^{f_t} W_{t-1} + S_t
//
// h log momentum and f log keep. With H and F the decays between tokens (decay.h), 0 for the time before,
//
//   S_t = e^{h_1 + ... + h_t} S_0 - sum over j of (H P)_tj g_j
//   W_t = e^{f_1 + ... + f_t} W_0 + (F e^{h_1 + ...})_t S_0 - sum over j of (F H P)_tj g_j
//
// Behrouz et al., 2024 (arXiv 2501.00663). All tensors are [B, H, rows, columns].
#pragma once

#include "autograd/learning/decay.h"
#include "autograd/learning/descent.h"

namespace mixgrad {

/// What of the past is in the weights and in the momentum of each token.
struct Momentum {
  Decays keep, momentum;  // F and H
  Tensor applied;         // P [m, m'], undefined: each token applies its own gradient
  Tensor in_momentum;     // H P [m, m']
  Tensor in_weights;      // F H P [m, m']
  Tensor carried;         // of S_0 in the weights [m, 1]
};
/// log_keep and log_momentum [m, 1], <= 0.
Momentum momentum(const Tensor& log_keep, const Tensor& log_momentum, const Tensor& applied = {});

/// Of what was computed from a Momentum.
struct MomentumGradients {
  explicit MomentumGradients(const Momentum& forward);

  Tensor kept;         // of e^{f_1 + ...} [m, 1]
  Tensor carried;      // [m, 1]
  Tensor remembered;   // of e^{h_1 + ...} [m, 1]
  Tensor in_weights;   // [m, m']
  Tensor in_momentum;  // [m, m']
};
struct MomentumInputGradients {
  Tensor log_keep, log_momentum, applied;  // applied undefined where it is
};
MomentumInputGradients momentum_backward(const Momentum& forward, const MomentumGradients& d);

/// A layer of weight W [I, O], with momentum S like it, in one chunk.
struct MomentumLayer {
  Tensor from_weight, from_momentum;  // q W and q S [n, O]
  DescentRead read;
  Tensor output;            // what it gives for the queries [n, O]
  Tensor weight, momentum;  // behind the chunk
};
/// q [n, I] of the last n of the chunk's m tokens; inputs x [m', I] and errors e [m', O] make the gradients
/// x^T e.
MomentumLayer momentum_layer(const Tensor& q, const Tensor& x, const Tensor& e, const Tensor& weight,
                             const Tensor& momentum, const Momentum& rates);
/// For n = m. dweight and dmomentum are the gradients behind the chunk, and become those before it, but for
/// what the errors owe to the weights. Adds to drates.
DescentGradients momentum_layer_backward(const MomentumLayer& layer, const Tensor& q, const Tensor& x,
                                         const Tensor& e, const Tensor& weight, const Tensor& momentum,
                                         const Momentum& rates, const Tensor& doutput, Tensor& dweight,
                                         Tensor& dmomentum, MomentumGradients& drates);

}  // namespace mixgrad
