// Tokenizers: text to token ids and back. Two vocabularies need no training: bytes and characters.
// Also the UTF-8 decoder under them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mixgrad {

/// One step of decoding UTF-8.
struct Utf8Character {
  char32_t code_point;  ///< U+FFFD when not valid
  size_t length;        ///< bytes to step over; when not valid, those that can't begin a character together
  bool valid;
};

/// The character at the front of bytes, which must not be empty. Overlong forms, surrogates and code points
/// beyond U+10FFFF aren't valid, nor is a character cut short. (Unicode 15, section 3.9, table 3-7; the
/// length of what is not valid is its "maximal subpart", as in the WHATWG's decoder.)
Utf8Character decode_utf8(std::string_view bytes);

/// Bytes made fit for a terminal: valid UTF-8 in which U+FFFD stands for whatever is invalid or incomplete,
/// and for control characters other than tab, newline and carriage return (a sample must not reprogram the
/// terminal).
std::string printable(std::string_view bytes);

/// A vocabulary: every token stands for a fixed string of bytes.
///
/// `byte`: the 256 bytes; id = byte; any data round-trips exactly.
/// `char`: the distinct characters (Unicode code points) of a UTF-8 text in code point order; nothing is
/// normalised: a carriage return, a NUL or a byte order mark is a character like any other.
class Tokenizer {
 public:
  /// The kinds that make() knows.
  static std::vector<std::string> kinds();

  /// A tokenizer of that kind for the text it will be trained on. Throws UsageError for an unknown kind or
  /// when `char` gets an empty text, Error with byte offset and line when `char` gets text that is not UTF-8.
  static Tokenizer make(std::string_view kind, std::string_view text);

  /// Reads what to_json() wrote. Throws Error for anything that to_json() can't have written.
  static Tokenizer from_json(const nlohmann::json& json);

  /// {"kind": "byte"} or {"kind": "char", "characters": "..."}: the vocabulary travels in the checkpoint.
  nlohmann::json to_json() const;

  const std::string& kind() const { return kind_; }
  int64_t vocabulary_size() const { return static_cast<int64_t>(tokens_.size()); }

  /// The ids of the text's tokens. `char` throws UsageError that names the first character outside the
  /// vocabulary and its position, and when the text is not UTF-8.
  std::vector<int32_t> encode(std::string_view text) const;

  /// The bytes that the ids stand for. Throws Error for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;

  /// decode(ids).size(), without the bytes: losses in nats per token become bits per byte by it.
  int64_t byte_length(std::span<const int32_t> ids) const;

  /// One token, printable and unambiguous: \n \r \t \\ escaped, space as U+2423 (open box), other bytes that
  /// don't print as \xNN, invisible characters as \u{NNNN}. Throws Error for an id outside the vocabulary.
  std::string token_text(int32_t id) const;

  bool operator==(const Tokenizer&) const = default;

 private:
  Tokenizer(std::string kind, std::vector<std::string> tokens);
  const std::string& token(int32_t id) const;

  std::string kind_;
  std::vector<std::string> tokens_;        ///< id -> its bytes
  std::vector<int32_t> id_of_code_point_;  ///< `char` only: code point -> id or -1, up to the last one known
};

}  // namespace mixgrad
