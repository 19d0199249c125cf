// What the commands have in common that measure whole mixers of the registry, with their projections.
#pragma once

#include <string>
#include <vector>

#include "nn/mixer.h"

namespace mixgrad {

/// Numbers of tokens, as --lengths lists them. Throws UsageError for anything else.
std::vector<int64_t> parse_lengths(const std::string& text);

/// The mixers of a pattern; "all": every one that has a causal form, with its default options. Throws
/// UsageError for one that has none.
std::vector<MixerChoice> causal_mixers(const std::string& pattern);

/// What figures and lines about a mixer begin with: "mixer gma(components=32)".
std::string mixer_title(const MixerChoice& choice);

/// FLOPs of the forward pass of a sequence's tokens at positions `first` to `last`, projections included; the
/// first token of all is at position 1.
double module_flops(Mixer& mixer, int64_t first, int64_t last);

}  // namespace mixgrad
