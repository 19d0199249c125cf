#include "nn/mixer_cases.h"

#include "nn/mixer.h"

namespace mixgrad {

namespace {

constexpr int64_t batch = 2, length = 5, context_length = 4, width = 12, heads = 2;

/// One form of a mixer as a function of its inputs and parameters.
GradCase mixer_case(const MixerKind& kind, const std::string& form, CaseInputs& inputs) {
  Initialiser initialiser(DType::float64, Device{}, inputs.generator());
  const MixerChoice choice = parse_pattern(kind.name + "(" + kind.check_options + ")", 1)[0];
  const std::shared_ptr<Mixer> mixer = make_mixer(choice, width, heads, false, initialiser);

  GradCase result{str(kind.name, ", ", form), {inputs.normal("x", {batch, length, width})}, {}};
  const bool cross = form == "cross";
  if (cross) result.inputs.push_back(inputs.normal("context", {batch, context_length, width}));
  const size_t first_parameter = result.inputs.size();
  for (const Parameter& parameter : mixer->parameters()) {
    // Away from the initial values, where many are equal.
    result.inputs.push_back(inputs.normal(parameter.name, parameter.variable->shape(), 0.5));
  }
  const Tensor key_mask =
      form == "key mask" ? Tensor::from(std::vector<int32_t>{1, 0, 1, 1, 1, 0, 1, 1, 0, 1}, {batch, length})
                         : Tensor();
  const bool causal = form == "causal";
  result.function = [=](const std::vector<Variable>& in) {
    const std::vector<Parameter> parameters = mixer->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) *parameters[i].variable = in[first_parameter + i];
    return std::vector{mixer->forward(
        {.x = in[0], .context = cross ? in[1] : Variable(), .key_mask = key_mask, .causal = causal})};
  };
  return result;
}

}  // namespace

std::vector<GradCaseGroup> all_mixer_cases(uint64_t seed) {
  CaseInputs inputs(seed);
  std::vector<GradCaseGroup> groups;
  for (const MixerKind& kind : mixer_kinds()) {
    GradCaseGroup group{"mixers", {}};
    if (kind.forms.causal) group.cases.push_back(mixer_case(kind, "causal", inputs));
    if (kind.forms.bidirectional) group.cases.push_back(mixer_case(kind, "bidirectional", inputs));
    if (kind.forms.cross) group.cases.push_back(mixer_case(kind, "cross", inputs));
    if (kind.forms.key_mask) group.cases.push_back(mixer_case(kind, "key mask", inputs));
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace mixgrad
