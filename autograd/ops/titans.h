// The neural memory of Titans: a network that learns from the tokens that are read, by gradient descent with
// momentum, and forgets.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

struct TitansOptions {
  int64_t chunk = 16;  // tokens whose gradients are taken at the same weights: part of what is computed
};

/// How the tokens drive the memory, [B, T, H] each.
struct TitansGates {
  Variable rate;          // theta >= 0, of the gradient
  Variable log_keep;      // log (1 - alpha) <= 0, of what the weights keep
  Variable log_momentum;  // log eta <= 0, of what the momentum keeps
};

/// A memory: its weights, and the momentum of each.
struct TitansMemory {
  std::vector<Variable> weights;   // linear: W [B, H, dk, dv]; two layers: W1 [B, H, dk, F], W2 [B, H, F, dv]
  std::vector<Variable> momentum;  // likewise
};

/// What reading with it returns.
struct Titans {
  Variable output;      // [B, T, H, dv]
  TitansMemory memory;  // behind the last token
};

/// With M the memory as a function, k W or GELU(k W1) W2 (GELU by its tanh approximation), and chunks of
/// tokens, the last of which may be shorter, each token has the loss l_t = |M(k_t) - v_t|^2 / 2, and with its
/// gradient at the weights before the token's chunk
///
///   S_t = eta_t S_{t-1} - theta_t dl_t/dW      W_t = (1 - alpha_t) W_{t-1} + S_t      o_t = M_t(q_t)
///
/// q, k [B, T, H, dk], v [B, T, H, dv]. Saved for backward: the inputs, and the memory of every eighth chunk.
/// Chunks are computed one after the other; a future token never changes an earlier output by a bit. Behrouz
/// et al., 2024 (arXiv 2501.00663). Throws Error for shapes that do not go together.
Titans titans(const Variable& q, const Variable& k, const Variable& v, const TitansGates& gates,
              const TitansMemory& memory, const TitansOptions& options = {});

/// The same without gradients and piece by piece: the output for tokens that follow on `position` others.
/// memory is what is known of these: the weights before the chunk that is being read, the momentum, both in
/// the order of TitansMemory, and the chunk's tokens so far: k, v [B, C, H, ...] and the gates [B, C, H].
Tensor titans_read_on(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rate,
                      const Tensor& log_keep, const Tensor& log_momentum, const TitansOptions& options,
                      int64_t position, Tensors& memory);

std::vector<GradCase> titans_cases(CaseInputs& inputs);

}  // namespace mixgrad
