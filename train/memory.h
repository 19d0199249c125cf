// Whether a run fits into memory: what this machine has left, and what training needs.
#pragma once

#include <cstdint>

#include "models/language_model.h"
#include "train/training_step.h"

namespace mixgrad {

/// Bytes that this process can still take. Of a GPU, what is free; of the CPU, what the system calls
/// available and its free swap, or what the limits of a container or of the process leave where that is less.
/// Without these figures (not Linux), no limit.
int64_t available_memory_bytes(Device device);

/// Bytes that training holds at the very least: weights, gradients and two moments of the large matrices, and
/// one [B, T, D] of each layer. Allocates nothing.
double least_training_bytes(const ModelConfig& config, int64_t B);

/// The most bytes that tensors and kernels will have in use at once while a run trains, evaluates and
/// samples, whether it starts anew or resumes. Measured on a step without computing it (tensor/measure.h), so
/// exact but for pictures and for caches that grow while a sample is drawn.
int64_t measure_training_bytes(const ModelConfig& config, StepBatches batches, bool resumes, Device device);

}  // namespace mixgrad
