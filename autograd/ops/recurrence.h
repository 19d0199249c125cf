// Linear recurrences over matrix states: linear attention, retention, attention with a scalar gate, the delta
// rule.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

struct RecurrenceOptions {
  bool causal = true;       // token t sees tokens up to t; else all keys, and T may differ from Tk
  bool normalise = false;   // divide each output by q_t . z_t + eps
  double eps = 1e-6;        // of the normaliser
  double scale = 1;         // multiplies q
  int64_t chunk = 64;       // tokens that are computed at once; changes the result by rounding alone
  bool final_state = true;  // whether the caller wants the state after the last token
  Tensor documents = {};    // int32 [B, T], not 0 where a document begins: it starts from a state of zero
};

/// What a recurrence returns.
struct Recurrence {
  Variable output;      // [B, T, H, dv]
  Variable state;       // [B, H, dk, dv] after the last token; undefined unless options.final_state
  Variable normaliser;  // [B, H, dk] likewise, and undefined unless normalised
};

/// S_t = e^{g_t} S_{t-1} + k_t^T v_t and o_t = q_t S_t, or, normalised, z_t = e^{g_t} z_{t-1} + k_t and
/// o_t = q_t S_t / (q_t . z_t + eps), with q scaled first. Not causal: S and z after the last key, for every
/// query.
///
/// q [B, T, Hk, dk], k [B, Tk, Hk, dk], v [B, Tk, H, dv]; Hk divides H, and value head h reads key head
/// floor(h / (H / Hk)). All three may be views whose heads lie side by side.
/// log_decay g <= 0, causal form only: [B, T, H], or [B, T, H, dk] with a gate for each row of S (and entry
/// of z); undefined: no gate. It is limited to -100 from below. initial_state [B, H, dk, dv] and, when
/// normalised, initial_normaliser [B, H, dk]: both or neither; undefined: zero.
///
/// A row may hold several documents, in the causal form: nothing passes from one to the next, neither values
/// nor gradients nor NaNs. The initial state is that of tokens before the first that begins a document, the
/// final state that of the last document. Padding is a document of its own.
///
/// Saved for backward: the inputs, and the states between chunks, T / chunk times dk (dv + 1) numbers a head;
/// when normalised the output and its denominators. Forward 2 T (C (dk + dv) / 2 + 2 dk dv) FLOPs a head,
/// backward about three times that. A future token never changes an earlier output by a bit; one that is NaN
/// reaches none before its own block of 16. Katharopoulos et al., 2020 (arXiv 2006.16236); with
/// gates Sun et al., 2023 (arXiv 2307.08621), for each channel Yang et al., 2023 (arXiv 2312.06635). Throws
/// Error for shapes that do not go together.
Recurrence recurrence(const Variable& q, const Variable& k, const Variable& v,
                      const RecurrenceOptions& options, const Variable& log_decay = {},
                      const Variable& initial_state = {}, const Variable& initial_normaliser = {});

struct DeltaRuleOptions {
  double scale = 1;         // multiplies q
  int64_t chunk = 64;       // tokens that are computed at once; changes the result by rounding alone
  bool final_state = true;  // whether the caller wants the state after the last token
  Tensor documents = {};    // int32 [B, T], not 0 where a document begins: it starts from a state of zero
};

/// The delta rule, one step of gradient descent on |k_t S - v_t|^2 / 2 with rate beta_t, after forgetting:
///
///   S_t = Sb + beta_t k_t^T (v_t - k_t Sb) with Sb = e^{g_t} S_{t-1}, o_t = scale q_t S_t
///
/// q, k, v, log_decay and initial_state as those of recurrence(); beta [B, T, H]. A step shrinks what S holds
/// along k_t as long as 0 <= beta_t |k_t|^2 <= 2: beyond, S may grow without limit, so keys should have
/// length 1.
///
/// Saved for backward: the inputs but v, the states between chunks, and T dv residuals v_t - k_t Sb a head.
/// Forward 2 T (C (3 dk / 2 + dv) + 3 dk dv) FLOPs a head, backward about 2.4 times that. A NaN reaches
/// no token before its own block of 16. Yang et al., 2024 (arXiv 2406.06484); with gates Yang et al., 2024
/// (arXiv 2412.06464), for each channel the Kimi team, 2025 (arXiv 2510.26692). Throws Error for shapes that
/// do not go together.
Recurrence delta_rule(const Variable& q, const Variable& k, const Variable& v, const Variable& beta,
                      const DeltaRuleOptions& options, const Variable& log_decay = {},
                      const Variable& initial_state = {});

std::vector<GradCase> recurrence_cases(CaseInputs& inputs);

}  // namespace mixgrad
