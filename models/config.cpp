#include "models/config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "nn/mixer.h"

namespace mixgrad {

namespace {

void check_range(const char* field, int64_t value, int64_t minimum, int64_t maximum) {
  check_usage(value >= minimum && value <= maximum, "[model] ", field, " ", value, "; allowed: ", minimum,
              " to ", maximum);
}

void check_choice(const char* field, const std::string& value, const std::vector<std::string>& allowed) {
  check_usage(std::find(allowed.begin(), allowed.end(), value) != allowed.end(), "[model] ", field, " '",
              value, "'; allowed: ", join(allowed));
}

}  // namespace

void ModelConfig::validate() const {
  constexpr int64_t large = int64_t{1} << 24;
  check_range("vocabulary", vocabulary, 1, large);
  check_range("layers", layers, 1, 1024);
  check_range("heads", heads, 1, large);
  check_range("width", width, 1, large);
  check_range("context", context, 1, large);
  check_range("mlp_hidden", mlp_hidden, 0, large);
  check_usage(width % heads == 0, "[model] width ", width, " is not a multiple of heads ", heads,
              "; allowed heads: the divisors of the width");
  check_choice("positions", positions, {"auto", "learned", "sinusoidal", "rope", "none"});
  check_choice("norm", norm, {"layer", "rms"});
  check_usage(std::isfinite(dropout) && dropout >= 0 && dropout < 1, "[model] dropout ", dropout,
              "; allowed: 0 <= dropout < 1");
  check_usage(positions != "rope" || width / heads % 2 == 0,
              "[model] positions rope turn pairs: the head size ", width / heads,
              " (width / heads) must be even");
  check_usage(positions != "sinusoidal" || width % 2 == 0,
              "[model] positions sinusoidal need an even width, not ", width);
  check_usage(ttt_tokens >= 0 && ttt_tokens < context, "[model] ttt_tokens ", ttt_tokens,
              "; allowed: 0 (off), or 1 to ", context - 1,
              ", less than the context, so that training sees updates");
  check_usage(std::isfinite(ttt_rate) && ttt_rate >= 0, "[model] ttt_rate ", ttt_rate,
              "; allowed: finite, 0 or more");
  check_range("ttt_hidden", ttt_hidden, 0, large);
  const std::vector<MixerChoice> choices = parse_pattern(pattern, layers);
  for (const MixerChoice& choice : choices) {
    check_usage(choice.kind->forms.causal, "[model] mixer ", choice.kind->name, " has no causal form");
    check_usage(positions != "rope" || choice.kind->forms.rope, "[model] mixer ", choice.kind->name,
                " has no rotary positions; allowed: learned, sinusoidal, none");
  }
  // The first block's fast MLP stands behind its mixer, which no gradient of an update passes.
  for (int64_t layer = first_fast_layer() + 1; learns() && layer < layers; ++layer) {
    check_usage(choices[layer].kind->forms.recorded_state, "[model] mixer ", choices[layer].kind->name,
                " of layer ", layer,
                " has no gradients while it is read piece by piece, as ttt_tokens needs ", "behind layer ",
                first_fast_layer());
  }
}

ModelConfig ModelConfig::resolved() const {
  validate();
  ModelConfig config = *this;
  if (config.mlp_hidden == 0) config.mlp_hidden = 4 * width;
  if (config.ttt_tokens > 0 && config.ttt_hidden == 0) config.ttt_hidden = config.mlp_hidden;
  if (config.positions == "auto") config.positions = "learned";
  config.pattern = pattern_text(parse_pattern(pattern, layers));
  return config;
}

void to_json(nlohmann::json& json, const ModelConfig& c) {
  json = {{"vocabulary", c.vocabulary},
          {"layers", c.layers},
          {"heads", c.heads},
          {"width", c.width},
          {"context", c.context},
          {"mlp_hidden", c.mlp_hidden},
          {"pattern", c.pattern},
          {"positions", c.positions},
          {"norm", c.norm},
          {"conv", c.conv},
          {"bias", c.bias},
          {"tie_embeddings", c.tie_embeddings},
          {"dropout", c.dropout},
          {"ttt_tokens", c.ttt_tokens},
          {"ttt_rate", c.ttt_rate},
          {"ttt_hidden", c.ttt_hidden}};
}

void from_json(const nlohmann::json& json, ModelConfig& c) {
  try {
    json.at("vocabulary").get_to(c.vocabulary);
    json.at("layers").get_to(c.layers);
    json.at("heads").get_to(c.heads);
    json.at("width").get_to(c.width);
    json.at("context").get_to(c.context);
    json.at("mlp_hidden").get_to(c.mlp_hidden);
    json.at("pattern").get_to(c.pattern);
    json.at("positions").get_to(c.positions);
    json.at("norm").get_to(c.norm);
    c.conv = json.value("conv", false);  // models stored before there was the choice have none
    json.at("bias").get_to(c.bias);
    json.at("tie_embeddings").get_to(c.tie_embeddings);
    json.at("dropout").get_to(c.dropout);
    const ModelConfig older;  // checkpoints from before test-time training lack its fields
    c.ttt_tokens = json.value("ttt_tokens", older.ttt_tokens);
    c.ttt_rate = json.value("ttt_rate", older.ttt_rate);
    c.ttt_hidden = json.value("ttt_hidden", older.ttt_hidden);
  } catch (const nlohmann::json::exception& error) {
    throw Error(str("[model] the stored configuration is damaged: ", error.what()));
  }
}

std::string first_difference(const ModelConfig& a, const ModelConfig& b) {
  const nlohmann::json left = a;
  const nlohmann::json right = b;
  // What is chosen before what may follow from it.
  for (const char* field :
       {"vocabulary", "layers", "heads", "width", "context", "pattern", "positions", "norm", "conv", "bias",
        "tie_embeddings", "dropout", "ttt_tokens", "ttt_rate", "ttt_hidden", "mlp_hidden"}) {
    if (left.at(field) != right.at(field)) {
      return str(field, " ", left.at(field).dump(), " and ", right.at(field).dump());
    }
  }
  return "";
}

}  // namespace mixgrad
