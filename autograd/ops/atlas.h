// The memory of Atlas: a matrix that learns, at every token, from a window of the latest ones.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

struct AtlasOptions {
  int64_t window = 4;  // c, the latest tokens that a step looks at; 1: the token alone
  int64_t chunk = 16;  // tokens whose gradients are taken at the same weights: part of what is computed
};

/// How the tokens drive the memory, [B, T, H] each.
struct AtlasGates {
  Variable rate;          // theta >= 0, of a step
  Variable weight;        // gamma >= 0, of the token in the steps whose window it is in
  Variable log_keep;      // log alpha <= 0, of what the matrix keeps
  Variable log_momentum;  // log eta <= 0, of what the momentum keeps
};

/// What reading with it returns.
struct Atlas {
  Variable output;    // [B, T, H, dv]
  Variable matrix;    // W [B, H, dk, dv] behind the last token
  Variable momentum;  // S [B, H, dk, dv]
};

/// Each token has the loss l_j = |k_j W - v_j|^2 / 2. Its gradient counts in the steps of c tokens, and is
/// taken at the weights before the chunk of the token whose step it is:
///
///   S_t = eta_t S_{t-1} - theta_t sum over t - c < j <= t of gamma_j dl_j/dW
///   W_t = alpha_t W_{t-1} + S_t      o_t = q_t W_t
///
/// q, k [B, T, H, dk], v [B, T, H, dv]; matrix and momentum [B, H, dk, dv], before the first token. With a
/// window of one token it is titans() with a linear memory and the rate theta gamma.
///
/// Saved for backward: the inputs, and the matrices of every eighth chunk. Chunks are computed one after the
/// other; a future token never changes an earlier output by a bit. Behrouz et al., 2025 (arXiv 2505.23735),
/// by plain gradient descent with momentum. Throws Error for shapes that do not go together.
Atlas atlas(const Variable& q, const Variable& k, const Variable& v, const AtlasGates& gates,
            const Variable& matrix, const Variable& momentum, const AtlasOptions& options = {});

/// The same without gradients and piece by piece: the output for tokens that follow on `position` others.
/// memory is what is known of these, in the order of atlas_memory().
Tensor atlas_read_on(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rate,
                     const Tensor& weight, const Tensor& log_keep, const Tensor& log_momentum,
                     const AtlasOptions& options, int64_t position, Tensors& memory);
/// The memory before the first token: matrix, momentum, and room for keys, values and weights of the c - 1
/// tokens before a chunk and for a chunk's tokens.
Tensors atlas_memory(const Tensor& matrix, const Tensor& momentum, const AtlasOptions& options);

std::vector<GradCase> atlas_cases(CaseInputs& inputs);

}  // namespace mixgrad
