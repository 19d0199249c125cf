// AdamW, gradient clipping and the learning-rate schedule.
#pragma once

#include "nn/module.h"
#include "tensor/safetensors.h"

namespace mixgrad {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // of the parameters that decay
};

/// AdamW (Loshchilov, Hutter, 2019) with its moments in the parameters' element type.
class AdamW {
 public:
  AdamW(std::vector<Parameter> parameters, const AdamWConfig& config);

  /// One step on the gradients of all parameters, each multiplied by gradient_scale (see clip_scale).
  /// Throws Error when a parameter has no gradient: nothing fails to train in silence.
  void step(double learning_rate, double gradient_scale = 1);

  /// How many steps were taken; part of the state.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  /// The moments, named "m.<parameter>" and "v.<parameter>", for checkpoints.
  NamedTensors state() const;

 private:
  std::vector<Parameter> parameters_;
  AdamWConfig config_;
  Tensors m_;
  Tensors v_;
  int64_t steps_ = 0;
};

/// Root of the sum of squares of all gradients; parameters without one count as 0.
double gradient_norm(const std::vector<Parameter>& parameters);

/// The factor that brings gradients of this norm down to max_norm: min(1, max_norm / (norm + epsilon)); 1 for
/// max_norm = 0, which means no clipping. Pascanu, Mikolov, Bengio, 2013.
double clip_scale(double norm, double max_norm, double epsilon = 0);

/// Linear warm-up to the peak, then half a cosine down to the minimum (Loshchilov, Hutter: SGDR, 2017).
struct CosineSchedule {
  double peak;
  double minimum;
  int64_t warmup_steps;
  int64_t total_steps;

  /// The rate of step t = 0, 1, ...: peak (t + 1) / warmup while t < warmup, minimum from total_steps on.
  double rate(int64_t t) const;
};

}  // namespace mixgrad
