#include "nn/mixer.h"

#include <charconv>
#include <cmath>
#include <set>

#include "autograd/documents.h"

namespace mixgrad {

#define MIXER(name) MixerKind name##_mixer();
#include "nn/mixers/mixers.def"
#undef MIXER

const std::vector<MixerKind>& mixer_kinds() {
  static const std::vector<MixerKind> kinds = {
#define MIXER(name) name##_mixer(),
#include "nn/mixers/mixers.def"
#undef MIXER
  };
  return kinds;
}

namespace {

/// "; did you mean 'x'?" or nothing.
std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
  const std::string likely = nearest(word, known);
  return likely.empty() ? "" : str("; did you mean '", likely, "'?");
}

}  // namespace

const MixerKind& find_mixer(const std::string& name) {
  std::vector<std::string> names, known;
  for (const MixerKind& kind : mixer_kinds()) {
    if (kind.name == name) return kind;
    names.push_back(kind.name);
    known.push_back(kind.name + (kind.forms.causal ? "" : " (not causal)"));
  }
  throw UsageError(str("[mixer] unknown mixer '", name, "'; known: ", join(known), suggestion(name, names)));
}

int64_t MixerState::bytes() const {
  int64_t sum = conv_tail.defined() ? conv_tail.bytes() : 0;
  for (const Tensor& tensor : tensors) sum += tensor.bytes();
  return sum;
}

int64_t MixerConfig::group_option(const std::string& mixer, const std::string& name) const {
  const int64_t count = size_option(name, heads);
  check_usage(heads > 0 && heads % count == 0, "[", mixer, "] ", name, " ", count, " does not divide ", heads,
              " heads; allowed: the divisors of ", heads);
  return count;
}

Mixer::Mixer(const MixerConfig& config, std::string name, const MixerForms& forms)
    : width_(config.width), heads_(config.heads), name_(std::move(name)), forms_(forms) {
  check_usage(heads_ > 0 && width_ % heads_ == 0, "[", name_, "] width ", width_, " is not a multiple of ",
              heads_, " heads");
  check_usage(!config.rope || forms_.rope, "[", name_,
              "] has no rotary positions; use learned, sinusoidal or none");
}

Variable Mixer::forward(const MixerInput& input) {
  const Shape& x = input.x.shape();
  check(x.rank() == 3 && x[2] == width_, "[", name_, "] x ", x, "; allowed: [B, T, ", width_, "]");
  check_usage(input.causal ? forms_.causal : forms_.bidirectional, "[", name_, "] has no ",
              input.causal ? "causal" : "bidirectional", " form");
  if (input.context.defined()) {
    const Shape& context = input.context.shape();
    check_usage(forms_.cross, "[", name_, "] has no cross form");
    check_usage(!input.causal && input.state == nullptr, "[", name_,
                "] the cross form is neither causal nor read piece by piece");
    check(context.rank() == 3 && context[0] == x[0] && context[2] == width_, "[", name_, "] context ",
          context, " for x ", x, "; allowed: [", x[0], ", Tk, ", width_, "]");
  }
  if (input.key_mask.defined()) {
    check_usage(forms_.key_mask, "[", name_,
                "] takes no key mask; padding behind a causal text changes nothing before it");
    check_usage(input.state == nullptr, "[", name_, "] takes no key mask while it is read piece by piece");
    const Shape expected{x[0], input.context.defined() ? input.context.shape()[1] : x[1]};
    check(input.key_mask.shape() == expected, "[", name_, "] key mask ", input.key_mask.shape(),
          "; allowed: ", expected);
  }
  if (input.documents.defined()) {
    check_usage(forms_.documents, "[", name_,
                "] packed documents are not kept apart by this mixer; give each a row of its own");
    check_usage(input.causal, "[", name_, "] packed documents need the causal form");
    check_documents(name_, input.documents, x[0], x[1]);
  }
  if (input.state != nullptr) {
    check_usage(input.causal, "[", name_, "] only a causal model is read piece by piece");
    check_usage(forms_.recorded_state || !recording(), "[", name_,
                "] has no gradients while it is read piece by piece; do that under NoGrad");
  }
  return mix(input);
}

namespace {

/// Reads a pattern from left to right.
class PatternReader {
 public:
  explicit PatternReader(const std::string& text) : text_(text) {}

  std::vector<MixerChoice> read() {
    std::vector<MixerChoice> choices;
    do {
      const MixerChoice choice = mixer();
      const int64_t times = accept('*') ? repetitions() : 1;
      choices.insert(choices.end(), times, choice);
    } while (accept(','));
    require(at_ == text_.size(), "a comma");
    return choices;
  }

 private:
  MixerChoice mixer() {
    MixerChoice choice{&find_mixer(word()), {}};
    for (const MixerOption& option : choice.kind->options) choice.options[option.name] = option.default_value;
    if (!accept('(') || accept(')')) return choice;
    std::set<std::string> said;
    do {
      const std::string name = word();
      require(accept('='), "'=' and a value");
      set(choice, name, number());
      check_usage(said.insert(name).second, "[pattern] '", text_, "': ", name, " is given twice");
    } while (accept(','));
    require(accept(')'), "')'");
    return choice;
  }

  void set(MixerChoice& choice, const std::string& name, double value) const {
    std::vector<std::string> known;
    for (const MixerOption& option : choice.kind->options) {
      known.push_back(option.name);
      if (option.name != name) continue;
      check_usage(value >= option.minimum && value <= option.maximum &&
                      (!option.integer || value == std::floor(value)),
                  "[pattern] ", choice.kind->name, ": ", name, " = ", value,
                  "; allowed: ", option.integer ? "whole numbers" : "numbers", " from ", option.minimum,
                  " to ", option.maximum);
      choice.options[name] = value;
      return;
    }
    throw UsageError(str("[pattern] ", choice.kind->name, " has no option '", name, "'; known: ", join(known),
                         suggestion(name, known)));
  }

  std::string word() {
    skip_spaces();
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_'))
      ++at_;
    require(at_ > begin, "a name");
    return text_.substr(begin, at_ - begin);
  }

  double number() {
    skip_spaces();
    double value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    require(error == std::errc{}, "a number");
    at_ = end - text_.data();
    return value;
  }

  int64_t repetitions() {
    const double times = number();
    check_usage(times >= 1 && times <= 1024 && times == std::floor(times), "[pattern] '", text_, "': *",
                times, "; allowed: whole numbers from 1 to 1024");
    return static_cast<int64_t>(times);
  }

  bool accept(char expected) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != expected) return false;
    ++at_;
    return true;
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  void require(bool ok, const char* expected) const {
    check_usage(ok, "[pattern] '", text_, "': ", expected, " was expected at position ", at_ + 1);
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace

std::string MixerChoice::text() const {
  std::vector<std::string> changed;
  for (const MixerOption& option : kind->options) {
    const double value = options.at(option.name);
    if (value != option.default_value) changed.push_back(str(option.name, "=", value));
  }
  return changed.empty() ? kind->name : str(kind->name, "(", join(changed, ","), ")");
}

std::vector<MixerChoice> parse_pattern(const std::string& pattern, int64_t layers) {
  const std::vector<MixerChoice> once = PatternReader(pattern).read();
  const auto length = static_cast<int64_t>(once.size());
  if (layers == any_layers) return once;
  check_usage(layers % length == 0, "[pattern] '", pattern, "' names ", length,
              " layers, which do not divide the ", layers, " layers of the model");
  std::vector<MixerChoice> choices;
  for (int64_t layer = 0; layer < layers; ++layer) choices.push_back(once[layer % length]);
  return choices;
}

std::string pattern_text(const std::vector<MixerChoice>& choices) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end = 0; begin < choices.size(); begin = end) {
    const std::string text = choices[begin].text();
    while (end < choices.size() && choices[end].text() == text) ++end;
    parts.push_back(end - begin > 1 ? str(text, "*", end - begin) : text);
  }
  return join(parts, ",");
}

std::unique_ptr<Mixer> make_mixer(const MixerChoice& choice, int64_t width, int64_t heads, bool rope,
                                  Initialiser& initialiser) {
  return choice.kind->make({width, heads, rope, choice.options}, initialiser);
}

}  // namespace mixgrad
