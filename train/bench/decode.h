// How long one token takes to decode, and how large the state is, against how many tokens have been read.
#pragma once

#include <string>

#include "train/bench/command.h"

namespace mixgrad {

struct DecodeOptions {
  int64_t batch = 1;
  std::string lengths = "1024,4096,16384,65536";
  int64_t heads = 6;
  int64_t head_size = 64;
  std::string mixers = "sdpa,gma,gated_gma,gated_delta,mamba2,ttt_linear";  // a pattern of mixers, or all

  /// Throws UsageError that names the first option which is out of range.
  void validate() const;
};

void declare_decode_options(CLI::App& app, DecodeOptions& options);

/// Figures "mixer PATTERN after T tokens": the time of the next token, as the mean over 64 of them one after
/// the other, since what learns by mini-batches works more at some tokens than at others. And of each mixer:
/// how much longer a token takes after the most tokens than after the fewest, the bytes of its state, its
/// parameters.
Findings measure_decode(const DecodeOptions& options, const Measuring& measuring);

}  // namespace mixgrad
