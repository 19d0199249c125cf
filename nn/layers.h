// The layers that everything else is made of.
#pragma once

#include <string_view>

#include "nn/module.h"

namespace mixgrad {

/// y = x W^T + b; weight [out, in] ~ N(0, 0.02), bias [out] = 0, if any.
class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, bool bias, Initialiser& initialiser);

  Variable forward(const Variable& x) const;  // [..., in] -> [..., out]
  const Variable& weight() const { return weight_; }
  const Variable& bias() const { return bias_; }  // undefined: none

 private:
  Variable weight_;
  Variable bias_;
};

/// A table of one vector for each id; weight [ids, width] ~ N(0, 0.02).
class Embedding : public Module {
 public:
  Embedding(int64_t ids, int64_t width, Initialiser& initialiser);

  Variable forward(const Tensor& ids) const;  // int32 [...] -> [..., width]
  const Variable& weight() const { return weight_; }

 private:
  Variable weight_;
};

enum class NormKind { layer, rms };

/// LayerNorm (Ba, Kiros, Hinton, 2016; eps 1e-5) or RMSNorm (Zhang, Sennrich, 2019; eps 1e-6) over the last
/// axis, with a weight of ones and, for LayerNorm, a bias of zeros if wanted.
class Norm : public Module {
 public:
  Norm(NormKind kind, int64_t width, bool bias, Initialiser& initialiser);

  Variable forward(const Variable& x) const;

 private:
  NormKind kind_;
  Variable weight_;
  Variable bias_;
};

/// silu of a causal convolution of each channel over its last `taps` tokens. Weight [channels, taps] and bias
/// [channels], if any, are uniform between -1/2 and 1/2 = 1 / sqrt(taps), where a sum of independent tokens
/// keeps their scale.
class ShortConv : public Module {
 public:
  static constexpr int64_t taps = 4;

  ShortConv(int64_t channels, Initialiser& initialiser, bool bias = false);

  /// [B, T, channels] -> the same. A tail [B, taps - 1, channels], unless it is null, holds the tokens before
  /// x, and afterwards the last of both; no gradient reaches it. documents int32 [B, T],
  /// not 0 where one begins, whose tokens see no others; undefined: nowhere.
  Variable forward(const Variable& x, Tensor* tail, const Tensor& documents = {}) const;
  /// The tail before the first token.
  Tensor empty_tail(int64_t batch) const;

 private:
  Variable weight_;
  Variable bias_;
};

/// Parameters of decay_gate() as state space models draw them. Biases whose softplus, the step size where
/// nothing is added, is log-uniform in [0.001, 0.1]; and logarithms of rates, which are uniform in [1, 16].
/// Gu, Dao, 2023 (arXiv 2312.00752); Dao, Gu, 2024.
Variable random_step_biases(const Shape& shape, Initialiser& initialiser);
Variable random_log_rates(const Shape& shape, Initialiser& initialiser);

/// Log decays of the heads of a recurrence, -exp(A_log) softplus(x W + dt_bias). weight [H, D] ~ N(0, 0.02);
/// A_log [H] = 0; dt_bias [H] such that the heads' decay rates where x W = 0 are a ladder from 1 to 1/64 a
/// token. Dao, Gu, 2024 (arXiv 2405.21060); the ladder: Sun et al., 2023 (arXiv 2307.08621).
class DecayGate : public Module {
 public:
  DecayGate(int64_t width, int64_t heads, Initialiser& initialiser);

  Variable forward(const Variable& x) const;  // [B, T, D] -> [B, T, H]

 private:
  Variable weight_;
  Variable A_log_;
  Variable dt_bias_;
};

/// down(gelu(up(x))), GELU by its tanh approximation.
class Mlp : public Module {
 public:
  Mlp(int64_t width, int64_t hidden, bool bias, Initialiser& initialiser);

  Variable forward(const Variable& x) const;               // [..., width] -> [..., width]
  const Variable& up() const { return up_.weight(); }      // [hidden, width]
  const Variable& down() const { return down_.weight(); }  // [width, hidden]

 private:
  Linear up_;
  Linear down_;
};

}  // namespace mixgrad
