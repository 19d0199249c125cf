// Matrix products: ours beside OpenBLAS.
#pragma once

#include <string>

#include "train/bench/command.h"

namespace mixgrad {

struct GemmOptions {
  int64_t batch = 16;     // sequences
  int64_t context = 256;  // tokens of each
  int64_t width = 384;
  int64_t heads = 6;
  int64_t hidden = 0;  // of the MLPs; 0: four times the width
  int64_t vocabulary = 65;
  std::string shape;  // "M,N,K": this product in all forms, instead of those of a model

  /// Throws UsageError that names the first option which is out of range.
  void validate() const;
};

void declare_gemm_options(CLI::App& app, GemmOptions& options);

/// A figure for each product of a model's training step and each of the two implementations, "qkv forward NT
/// 4096x1152x384, ours" and "..., OpenBLAS", measured in turns; and the ratio of the two. On a GPU, ours
/// alone.
Findings measure_gemm(const GemmOptions& options, const Measuring& measuring);

}  // namespace mixgrad
