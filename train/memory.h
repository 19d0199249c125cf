// Whether a run fits into memory: what this machine has left, and what a training step needs.
#pragma once

#include <cstdint>

#include "models/language_model.h"

namespace mixgrad {

/// Bytes that this process can still take: what the system calls available and its free swap, or what a
/// container's limit leaves where that is less. Without these figures (not Linux), no limit.
int64_t available_memory_bytes();

/// Bytes that a model's training holds whatever its batch: weights, gradients and two moments, counted from
/// the large matrices alone, so at least so many. Allocates nothing.
double least_parameter_bytes(const ModelConfig& config);

/// Bytes that the forward and backward pass on [B, T] tokens needs at its peak beyond what is in use before.
/// Measured on two small passes, whose dropout draws from a generator of their own: every mixer's memory
/// grows in proportion to the tokens. Leaves no gradients behind.
double estimate_step_bytes(LanguageModel& model, int64_t B, int64_t T);

}  // namespace mixgrad
