// The selective scan: a recurrence of which every entry of the state decays by itself.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

/// What a scan returns.
struct Scan {
  Variable output;  // [B, T, D]
  Variable state;   // [B, D, N] after the last token; undefined unless it was wanted
};

/// Every channel d keeps N numbers, which decay and are written and read as the token says:
///   h_t[d, n] = exp(delta_t[d] A[d, n]) h_{t-1}[d, n] + delta_t[d] u_t[d] B_t[n]
///   y_t[d] = sum over n of C_t[n] h_t[d, n] + D[d] u_t[d]
/// u, delta [B, T, D], delta > 0; A [D, N], < 0; B, C [B, T, N]; D [D] or undefined; initial_state [B, D, N]
/// or undefined, for 0. (A, B, C, D: the names of the paper.) documents int32 [B, T], not 0 where a document
/// begins, whose states start from 0; undefined: nowhere.
///
/// Saved for backward: the inputs, and the state before each 64 tokens, T / 64 times D N numbers. Forward 7 T
/// D N FLOPs, one of them an exponential; backward about three times that. Gu, Dao, 2023 (arXiv 2312.00752).
/// Throws Error for shapes that do not go together.
Scan selective_scan(const Variable& u, const Variable& delta, const Variable& A, const Variable& B,
                    const Variable& C, const Variable& D = {}, const Variable& initial_state = {},
                    bool final_state = true, const Tensor& documents = {});

/// Longhorn's diagonal approximation: the delta rule of which each entry of the state sees its own answer
/// alone, with the step of an exact, proximal solution,
///   S_t[d, e] = (1 - rate_te k_t[d]^2) S_{t-1}[d, e] + rate_te k_t[d] v_t[e]     o_t = scale q_t S_t
///   rate_te = beta_te / (1 + beta_te |k_t|^2)
/// q, k [B, T, Hk, dk], v, beta [B, T, H, dv], beta >= 0; Hk divides H. State and initial state are [B, H dv,
/// dk], value channels first. A scan: documents, cost and what is saved as above, with D = H dv and N = dk.
/// Liu et al., 2024 (arXiv 2407.14207). Throws Error for shapes that do not go together.
Scan longhorn_diagonal(const Variable& q, const Variable& k, const Variable& v, const Variable& beta,
                       double scale, const Variable& initial_state = {}, bool final_state = true,
                       const Tensor& documents = {});

std::vector<GradCase> scan_cases(CaseInputs& inputs);

}  // namespace mixgrad
