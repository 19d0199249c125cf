#include "train/saved_model.h"

namespace mixgrad {

NamedTensors named_values(LanguageModel& model) {
  NamedTensors named;
  for (const Parameter& parameter : model.parameters())
    named.emplace_back(parameter.name, parameter.variable->value());
  return named;
}

SavedModel load_model(const std::filesystem::path& path, Device device) {
  std::vector<std::string> skipped;
  const Checkpoint checkpoint = load_checkpoint(path, &skipped, CheckpointParts::without_optimizer);
  check(checkpoint.state.is_object() && checkpoint.state.contains("model") &&
            checkpoint.state.contains("tokenizer"),
        "[checkpoint] '", path.string(), "' holds no language model");
  const auto config = checkpoint.state["model"].get<ModelConfig>();
  const Tokenizer tokenizer = Tokenizer::from_json(checkpoint.state["tokenizer"]);
  check(tokenizer.vocabulary_size() == config.vocabulary, "[checkpoint] '", path.string(),
        "' is damaged: ", tokenizer.vocabulary_size(), " tokens in the tokenizer, ", config.vocabulary,
        " in the model");
  Generator generator;
  Initialiser initialiser(DType::float32, device, generator);
  auto model = std::make_unique<LanguageModel>(config, initialiser);
  NamedTensors wanted = named_values(*model);
  load_parameters(checkpoint.model, wanted);
  return {tokenizer, std::move(model), skipped};
}

int32_t opening_token(const Tokenizer& tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    if (tokenizer.decode({&id, 1}) == "\n") return id;
  }
  return 0;
}

}  // namespace mixgrad
