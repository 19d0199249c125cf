// What is left, after the tokens of a chunk, of what stood before each of them.
#pragma once

#include "autograd/arithmetic.h"

namespace mixgrad {

/// From log decays g <= 0 of m tokens [B, H, m, 1], with b_i = g_1 + ... + g_i.
struct Decays {
  Tensor between;  // e^{b_i - b_j} for j <= i, else 0 [B, H, m, m]
  Tensor since;    // e^{b_i} [B, H, m, 1]
};
/// Only differences that are at most 0 become exponents.
Decays decays(const Tensor& log_decay);
/// dg_t = sum over j < t <= i of dbetween_ij between_ij, plus the sum over i >= t of dsince_i since_i: pairs
/// are added up, since the difference of two running sums would cancel where gates are strong.
Tensor decays_backward(const Decays& decays, const Tensor& dbetween, const Tensor& dsince);

}  // namespace mixgrad
