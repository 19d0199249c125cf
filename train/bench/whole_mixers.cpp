#include "train/bench/whole_mixers.h"

#include "tensor/error.h"
#include "train/cli.h"

namespace mixgrad {

std::vector<int64_t> parse_lengths(const std::string& text) {
  return parse_numbers("--lengths", text, 1, int64_t{1} << 24);
}

std::vector<MixerChoice> causal_mixers(const std::string& pattern) {
  std::vector<MixerChoice> mixers;
  if (pattern == "all") {
    for (const MixerKind& kind : mixer_kinds()) {
      if (kind.forms.causal) mixers.push_back(parse_pattern(kind.name, 1)[0]);
    }
    return mixers;
  }
  mixers = parse_pattern(pattern, any_layers);
  for (const MixerChoice& choice : mixers) {
    check_usage(choice.kind->forms.causal, "[bench] mixer ", choice.kind->name, " has no causal form");
  }
  return mixers;
}

std::string mixer_title(const MixerChoice& choice) { return "mixer " + choice.text(); }

double module_flops(Mixer& mixer, int64_t first, int64_t last) {
  double flops = 0;
  for (const Parameter& parameter : mixer.parameters()) {
    const bool matrix = parameter.variable->shape().rank() == 2 && parameter.decays;
    if (matrix)
      flops += 2.0 * static_cast<double>(parameter.variable->value().elements() * (last - first + 1));
  }
  for (int64_t t = first; t <= last; ++t) flops += mixer.flops_per_token(t);
  return flops;
}

}  // namespace mixgrad
