// Short causal convolution along the sequence, each channel by itself.
#pragma once

#include "autograd/gradcheck_case.h"
#include "autograd/variable.h"

namespace mixgrad {

struct ConvOptions {
  bool silu = false;        // apply silu to the sums
  bool final_state = true;  // whether the caller wants the state after the last token
  Tensor documents = {};    // int32 [B, T], not 0 where a document begins: its tokens see zeros before it
};

/// What a convolution returns.
struct Convolution {
  Variable output;  // [B, T, D]
  Variable state;   // [B, W - 1, D]: the last W - 1 tokens, the oldest first; undefined unless
                    // options.final_state
};

/// y_t = f(bias + sum over i < W of weight_i (.) x_{t - (W - 1) + i}), f silu or nothing: each channel sees
/// its own W newest values up to t. x [B, T, D], weight [D, W], the newest token's tap last; bias [D] or
/// undefined; initial_state [B, W - 1, D] for the tokens before the first, or undefined, for 0.
///
/// Sequences that are read in pieces, with the state handed on, give the same bits as in one. Saved for
/// backward: the inputs; the sums that silu needs are computed again. Forward 2 W T D FLOPs, backward three
/// times that. Gu, Dao, 2023 (arXiv 2312.00752). Throws Error for shapes that do not go together.
Convolution causal_conv1d(const Variable& x, const Variable& weight, const Variable& bias = {},
                          const Variable& initial_state = {}, const ConvOptions& options = {});

std::vector<GradCase> conv_cases(CaseInputs& inputs);

}  // namespace mixgrad
