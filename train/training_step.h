// The work of one optimiser step: what `train` repeats and `bench step` measures.
#pragma once

#include <cstdint>
#include <span>

#include "models/language_model.h"

namespace mixgrad {

/// What a step computes its gradients on: `accumulate` batches of B random windows of T tokens, drawn by seed
/// and step number.
struct StepBatches {
  std::span<const int32_t> tokens;
  int64_t B, T;
  int64_t accumulate = 1;
  uint64_t seed = 1;
};

/// The mean loss over the batches of step number `step`, counted from 0, in nats per token. Leaves its
/// gradients in the model's parameters, and nothing of earlier ones. Dropout draws from the generator, if
/// given.
double compute_gradients(LanguageModel& model, const StepBatches& batches, int64_t step, Generator* dropout);

}  // namespace mixgrad
