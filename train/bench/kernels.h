// The kernels, one family after the other, as the ops call them.
#pragma once

#include <string>
#include <vector>

#include "train/bench/command.h"

namespace mixgrad {

struct KernelsOptions {
  int64_t batch = 16;
  int64_t context = 256;
  int64_t width = 384;
  int64_t heads = 6;
  int64_t components = 64;
  int64_t routing = 16;
  int64_t vocabulary = 65;

  /// Throws UsageError that names the first option which is out of range.
  void validate() const;
};

void declare_kernels_options(CLI::App& app, KernelsOptions& options);

/// Figures "FAMILY/OP, forward" and "..., backward", FAMILY a header of tensor/kernels. Timed is what the ops
/// do, with the memory that they take from the allocator. Bytes are those of the inputs and outputs, and of
/// their gradients, each once.
Findings measure_kernels(const KernelsOptions& options, const Measuring& measuring);

/// The names of all cases.
std::vector<std::string> kernel_names();

}  // namespace mixgrad
