// What a language model is made of: one struct, checked as a whole, stored with every checkpoint.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace mixgrad {

struct ModelConfig {
  int64_t vocabulary = 0;          // V
  int64_t layers = 4;              // L
  int64_t heads = 4;               // H
  int64_t width = 128;             // D
  int64_t context = 64;            // T: the longest sequence trained on; the size of a learned position table
  int64_t mlp_hidden = 0;          // 0: four times the width
  std::string pattern = "gma";     // the mixers, layer by layer; see parse_pattern
  std::string positions = "auto";  // learned, sinusoidal, rope, none; auto: learned
  std::string norm = "layer";      // layer, rms
  bool conv = false;               // mixers see a short convolution of each block's input
  bool bias = false;               // biases in the MLPs and in LayerNorm
  bool tie_embeddings = true;      // the head uses the embedding's weight
  double dropout = 0;              // of the embedding and of each residual branch
  int64_t ttt_tokens = 0;          // M: first-order test-time training after each M tokens; 0: none
  double ttt_rate = 1;             // of its updates; 0: its MLPs are there and do not learn from the text
  int64_t ttt_hidden = 0;          // hidden size of its MLPs; 0: mlp_hidden

  /// Throws UsageError that names the first field which is out of range or does not fit the others, its value
  /// and what is allowed. Allocates nothing.
  void validate() const;
  /// A valid copy in which nothing is left to a default: positions chosen, hidden size and pattern written
  /// out.
  ModelConfig resolved() const;

  /// The first block with an MLP for test-time training, which the last quarter has, at least one; layers:
  /// none has.
  int64_t first_fast_layer() const {
    return ttt_tokens > 0 ? layers - std::max<int64_t>(1, layers / 4) : layers;
  }
  /// Whether the model learns while it reads.
  bool learns() const { return ttt_tokens > 0 && ttt_rate > 0; }

  bool operator==(const ModelConfig&) const = default;
};

void to_json(nlohmann::json& json, const ModelConfig& config);
/// Throws Error when a field is missing or has the wrong type; call validate() on the result.
void from_json(const nlohmann::json& json, ModelConfig& config);

/// The first field in which two configurations differ, as "width 128 and 256"; empty when they are equal.
std::string first_difference(const ModelConfig& a, const ModelConfig& b);

}  // namespace mixgrad
