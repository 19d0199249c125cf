// Tokenizers by bytes and by characters, and the UTF-8 decoder under them.
#include "train/tokenizer.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>

#include "tensor/error.h"

namespace mixgrad {
namespace {

constexpr char32_t replacement_character = 0xFFFD;
constexpr std::string_view replacement_bytes = "\xEF\xBF\xBD";
constexpr char32_t code_points = 0x110000;
constexpr int32_t unknown = -1;

std::string hex(uint32_t value, int digits) {
  return str(std::hex, std::uppercase, std::setfill('0'), std::setw(digits), value);
}

bool is_control(char32_t c) { return c < 0x20 || (c >= 0x7F && c < 0xA0); }

/// Not control characters, but nothing to see either: rare spaces, marks of direction, the byte order mark.
bool is_invisible(char32_t c) {
  return c == 0xA0 || c == 0xAD || (c >= 0x2000 && c <= 0x200F) || (c >= 0x2028 && c <= 0x202F) ||
         (c >= 0x205F && c <= 0x206F) || c == 0x3000 || c == 0xFEFF;
}

/// One token as Tokenizer::token_text shows it.
std::string visible(std::string_view token) {
  const Utf8Character character = decode_utf8(token);
  const char32_t c = character.code_point;
  if (!character.valid || (c < 0x80 && is_control(c) && c != '\n' && c != '\r' && c != '\t')) {
    return "\\x" + hex(static_cast<unsigned char>(token[0]), 2);
  }
  switch (c) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\\':
      return "\\\\";
    case ' ':
      return "\u2423";
    default:
      return is_control(c) || is_invisible(c) ? "\\u{" + hex(c, 4) + "}" : std::string(token);
  }
}

/// What is wrong with the text at byte `offset`, where decode_utf8 found no character.
std::string not_utf8(std::string_view text, size_t offset) {
  const int64_t line = 1 + std::count(text.begin(), text.begin() + static_cast<int64_t>(offset), '\n');
  return str("[tokenizer] the text is not valid UTF-8 at byte ", offset, " (line ", line,
             "): ", visible(text.substr(offset, 1)));
}

/// The distinct characters of the text in code point order, each as its bytes.
std::vector<std::string> distinct_characters(std::string_view text) {
  std::vector<bool> seen(code_points);
  std::vector<std::string> characters;
  for (size_t at = 0; at < text.size();) {
    const Utf8Character character = decode_utf8(text.substr(at));
    if (!character.valid) throw Error(not_utf8(text, at) + "; --tokenizer byte takes any data");
    if (!seen[character.code_point]) {
      seen[character.code_point] = true;
      characters.emplace_back(text.substr(at, character.length));
    }
    at += character.length;
  }
  // UTF-8 keeps the order of code points, and std::string compares its characters as unsigned.
  std::sort(characters.begin(), characters.end());
  return characters;
}

std::vector<std::string> all_bytes() {
  std::vector<std::string> bytes;
  for (int value = 0; value < 256; ++value) bytes.emplace_back(1, static_cast<char>(value));
  return bytes;
}

}  // namespace

Utf8Character decode_utf8(std::string_view bytes) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<unsigned char>(bytes[i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  if (lead < 0xC2 || lead > 0xF4) return {replacement_character, 1, false};

  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t code_point = lead & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    uint32_t low = 0x80, high = 0xBF;
    if (i == 1) {
      // The second byte alone rules out overlong forms (E0, F0), surrogates (ED) and what is beyond U+10FFFF
      // (F4).
      low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
      high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    }
    if (i == bytes.size() || byte(i) < low || byte(i) > high) return {replacement_character, i, false};
    code_point = code_point << 6 | (byte(i) & 0x3F);
  }
  return {code_point, length, true};
}

std::string printable(std::string_view bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Character character = decode_utf8(bytes.substr(at));
    const char32_t c = character.code_point;
    const bool shown = character.valid && (!is_control(c) || c == '\t' || c == '\n' || c == '\r');
    out += shown ? bytes.substr(at, character.length) : replacement_bytes;
    at += character.length;
  }
  return out;
}

std::vector<std::string> Tokenizer::kinds() { return {"byte", "char"}; }

Tokenizer Tokenizer::make(std::string_view kind, std::string_view text) {
  if (kind == "byte") return Tokenizer("byte", all_bytes());
  if (kind == "char") {
    check_usage(!text.empty(), "[tokenizer] an empty text has no characters to make a vocabulary of");
    return Tokenizer("char", distinct_characters(text));
  }
  const std::string guess = nearest(kind, kinds());
  throw UsageError(str("[tokenizer] unknown tokenizer '", kind, "'; known: ", join(kinds()),
                       guess.empty() ? "" : "; did you mean '" + guess + "'?"));
}

Tokenizer::Tokenizer(std::string kind, std::vector<std::string> tokens)
    : kind_(std::move(kind)), tokens_(std::move(tokens)) {
  if (kind_ == "byte") return;
  id_of_code_point_.assign(decode_utf8(tokens_.back()).code_point + 1, unknown);
  for (size_t id = 0; id < tokens_.size(); ++id) {
    id_of_code_point_[decode_utf8(tokens_[id]).code_point] = static_cast<int32_t>(id);
  }
}

nlohmann::json Tokenizer::to_json() const {
  nlohmann::json json = {{"kind", kind_}};
  if (kind_ == "char") json["characters"] = join(tokens_, "");
  return json;
}

Tokenizer Tokenizer::from_json(const nlohmann::json& json) {
  const auto text_of = [&](const char* key) {
    check(json.contains(key) && json[key].is_string(), "[tokenizer] the stored tokenizer has no text '", key,
          "'");
    return json[key].get<std::string>();
  };
  check(json.is_object(), "[tokenizer] the stored tokenizer is a JSON ", json.type_name(),
        "; expected an object");
  const std::string kind = text_of("kind");
  check(kind == "byte" || kind == "char", "[tokenizer] the stored tokenizer has the unknown kind ",
        json["kind"].dump(), "; known: ", join(kinds()));
  const size_t keys = kind == "char" ? 2 : 1;
  check(json.size() == keys, "[tokenizer] the stored ", kind, " tokenizer has ", json.size(),
        " entries; expected ", keys);
  if (kind == "byte") return make(kind, "");

  const std::string characters = text_of("characters");
  check(!characters.empty(), "[tokenizer] the stored char tokenizer has no characters");
  Tokenizer tokenizer = make(kind, characters);
  check(join(tokenizer.tokens_, "") == characters,
        "[tokenizer] the stored characters aren't distinct and in code point order");
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  if (kind_ == "byte") {
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    return ids;
  }
  for (size_t at = 0; at < text.size();) {
    const Utf8Character character = decode_utf8(text.substr(at));
    const char32_t c = character.code_point;
    if (!character.valid) throw UsageError(not_utf8(text, at));
    const int32_t id = c < id_of_code_point_.size() ? id_of_code_point_[c] : unknown;
    if (id == unknown) {
      throw UsageError(str("[tokenizer] character '", visible(text.substr(at, character.length)), "' (U+",
                           hex(c, 4), ") at character index ", ids.size(), " is not in the vocabulary of ",
                           vocabulary_size(), " characters"));
    }
    ids.push_back(id);
    at += character.length;
  }
  return ids;
}

const std::string& Tokenizer::token(int32_t id) const {
  if (id < 0 || id >= vocabulary_size()) {
    throw Error(
        str("[tokenizer] token id ", id, " is outside the vocabulary of ", vocabulary_size(), " tokens"));
  }
  return tokens_[static_cast<size_t>(id)];
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += token(id);
  return text;
}

int64_t Tokenizer::byte_length(std::span<const int32_t> ids) const {
  int64_t bytes = 0;
  for (const int32_t id : ids) bytes += static_cast<int64_t>(token(id).size());
  return bytes;
}

std::string Tokenizer::token_text(int32_t id) const { return visible(token(id)); }

}  // namespace mixgrad
