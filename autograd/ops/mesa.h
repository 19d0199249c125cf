// Mesa: at every token the exact minimiser of all errors so far.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

struct MesaOptions {
  int64_t chunk = 64;       // tokens that are computed at once; changes the result by rounding alone
  bool final_state = true;  // whether the caller wants the matrices after the last token
  Tensor documents = {};    // int32 [B, T], not 0 where a document begins: it starts from matrices of zero
};

/// What it returns.
struct Mesa {
  Variable output;       // [B, T, H, dv]
  Variable key_state;    // H [B, H, dk, dk] after the last token; undefined unless options.final_state
  Variable value_state;  // B [B, H, dk, dv] likewise
};

/// What a ridge regression over all tokens so far, of values on keys, answers to the query:
///
///   H_t = e^{g_t} H_{t-1} + beta_t k_t^T k_t      B_t = e^{g_t} B_{t-1} + beta_t k_t^T v_t
///   o_t = q_t (H_t + diag(lambda))^{-1} B_t
///
/// so that M_t = (H_t + diag(lambda))^{-1} B_t minimises the sum over j <= t of beta_j e^{g_{j+1} + ... +
/// g_t} |k_j M - v_j|^2, and of lambda_i |row i of M|^2.
///
/// q, k [B, T, H, dk], v [B, T, H, dv]; log_decay g <= 0 and beta >= 0 [B, T, H]; lambda > 0 [H, dk];
/// initial_key_state, symmetric and positive semi-definite, [B, H, dk, dk] and initial_value_state [B, H, dk,
/// dv], or undefined: zero.
///
/// The systems are solved by conjugate gradients, to a residual of eps |q_t|, eps that of the element type,
/// or for at most 2 dk + 8 rounds; each round is one recurrence() with the directions as queries. Backward is
/// a second solve and two backward passes of recurrences. Saved for backward: the inputs, beta k, beta v, the
/// solutions, and B between chunks. A future token never changes an earlier output by a bit. von Oswald et
/// al., 2025 (arXiv 2506.05233). Throws Error for shapes that do not go together.
Mesa mesa(const Variable& q, const Variable& k, const Variable& v, const Variable& log_decay,
          const Variable& beta, const Variable& lambda, const MesaOptions& options = {},
          const Variable& initial_key_state = {}, const Variable& initial_value_state = {});

std::vector<GradCase> mesa_cases(CaseInputs& inputs);

}  // namespace mixgrad
