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
/// or undefined, for 0. (A, B, C, D: the names of the paper.)
///
/// Saved for backward: the inputs, and the state before each 64 tokens, T / 64 times D N numbers. Forward 7 T
/// D N FLOPs, one of them an exponential; backward about three times that. Gu, Dao, 2023 (arXiv 2312.00752).
/// Throws Error for shapes that do not go together.
Scan selective_scan(const Variable& u, const Variable& delta, const Variable& A, const Variable& B,
                    const Variable& C, const Variable& D = {}, const Variable& initial_state = {},
                    bool final_state = true);

std::vector<GradCase> scan_cases(CaseInputs& inputs);

}  // namespace mixgrad
