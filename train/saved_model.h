// A model with its tokenizer, as a checkpoint's state.json describes them.
#pragma once

#include <filesystem>
#include <memory>

#include "models/language_model.h"
#include "train/checkpoint.h"
#include "train/tokenizer.h"

namespace mixgrad {

/// The parameters' values under their names: handles, so that loading into them changes the model.
NamedTensors named_values(LanguageModel& model);

struct SavedModel {
  Tokenizer tokenizer;
  std::unique_ptr<LanguageModel> model;
  std::vector<std::string> skipped;  // a line for each newer checkpoint that is damaged
};

/// Loads what a run has learned from a checkpoint's folder or a run's. Throws Error when it is missing,
/// damaged or was not written by `train`.
SavedModel load_model(const std::filesystem::path& path, Device device);

/// What a text may begin after, where nothing else is said: the line end, or token 0 in a vocabulary without.
int32_t opening_token(const Tokenizer& tokenizer);

}  // namespace mixgrad
