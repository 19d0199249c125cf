// How long one token takes to decode, by a mixer and by a whole model, and how large the state is, against
// how many tokens have been read.
#pragma once

#include <string>

#include "models/config.h"
#include "train/bench/command.h"

namespace mixgrad {

struct DecodeOptions {
  ModelConfig model;  // its width and heads are those of the single mixers, too
  int64_t batch = 1;
  std::string lengths = "1024,4096,16384,65536";
  std::string mixers = "sdpa,gma,gated_gma,gated_delta,mamba2,ttt_linear";  // a pattern of mixers, all, none

  DecodeOptions();
  /// Throws UsageError that names the first option which is out of range.
  void validate() const;
};

void declare_decode_options(CLI::App& app, DecodeOptions& options);

/// Figures "mixer PATTERN after T tokens" and "model PATTERN after T tokens": the time of the next token, as
/// the mean over 64 of them one after the other, since what learns by mini-batches works more at some tokens
/// than at others. A model's time is that of generating: the choice of the token, too. And of each: how much
/// longer a token takes after the most tokens than after the fewest, the bytes of its state, its parameters.
Findings measure_decode(const DecodeOptions& options, const Measuring& measuring);

}  // namespace mixgrad
