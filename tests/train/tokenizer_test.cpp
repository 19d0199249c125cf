// Tokenizers: round trips, the vocabulary's order, errors that say where, and a decoder that no bytes can
// hurt.
#include "train/tokenizer.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/error.h"
#include "tensor/random.h"

namespace mixgrad {
namespace {

using namespace std::string_literals;
using Ids = std::vector<int32_t>;

/// The message of the Exception that run() throws; "" when it throws none.
template <class Exception, class Function>
std::string message_of(Function run) {
  try {
    run();
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Whether decode_utf8 walks through all bytes without meeting an invalid one.
bool valid_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Character character = decode_utf8(bytes);
    if (!character.valid) return false;
    bytes.remove_prefix(character.length);
  }
  return true;
}

/// UTF-8 by the bit layout of its definition, surrogates included: the other way to say what decode_utf8
/// says.
std::string encode_utf8(uint32_t c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
}

std::string every_byte() {
  std::string bytes;
  for (int value = 0; value < 256; ++value) bytes += static_cast<char>(value);
  return bytes;
}

const std::vector<std::string> hard_texts = {"a\r\nb\rc\n"s,
                                             "no final newline"s,
                                             "\xEF\xBB\xBF with a byte order mark"s,
                                             "nul \0 inside\0"s,
                                             "é ß 漢字 \U0001F600 \U0010FFFF"s,
                                             ""s};

}  // namespace

TEST_CASE("train/tokenizer: UTF-8 decodes every code point and no surrogate") {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const std::string bytes = encode_utf8(c);
    const Utf8Character character = decode_utf8(bytes + "x");
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    const bool right = surrogate
                           ? !character.valid
                           : character.valid && character.code_point == c && character.length == bytes.size();
    if (!right) FAIL("code point ", c);
  }
}

TEST_CASE("train/tokenizer: UTF-8 that is overlong or out of range or cut short is invalid") {
  struct Case {
    std::string bytes;
    size_t length;
  };
  // Lengths are the maximal subparts of the Unicode standard, section 3.9, tables 3-8 to 3-11.
  for (const Case& it :
       {Case{"\x80", 1}, Case{"\xBF", 1}, Case{"\xC0\x80", 1}, Case{"\xC1\xBF", 1}, Case{"\xE0\x80\x80", 1},
        Case{"\xE0\x9F\xBF", 1}, Case{"\xED\xA0\x80", 1}, Case{"\xF0\x80\x80\x80", 1},
        Case{"\xF0\x8F\xBF\xBF", 1}, Case{"\xF4\x90\x80\x80", 1}, Case{"\xF5\x80\x80\x80", 1},
        Case{"\xFF", 1}, Case{"\xC3", 1}, Case{"\xE2\x82", 2}, Case{"\xF0\x9F\x98", 3}, Case{"\xC3q", 1},
        Case{"\xE2\x82q", 2}, Case{"\xF0\x9F\x98q", 3}, Case{"\xF0\x9F\xF0\x9F", 2}}) {
    CAPTURE(it.bytes);
    const Utf8Character character = decode_utf8(it.bytes);
    CHECK_FALSE(character.valid);
    CHECK(character.length == it.length);
    CHECK(character.code_point == 0xFFFD);
  }
}

TEST_CASE("train/tokenizer: the decoder reads nothing behind its view") {
  const std::string_view smile = "\U0001F600";
  for (size_t length = 1; length < smile.size(); ++length) {
    CHECK_FALSE(decode_utf8(smile.substr(0, length)).valid);
    CHECK(decode_utf8(smile.substr(0, length)).length == length);
  }
}

TEST_CASE("train/tokenizer: printable replaces what is invalid and keeps the rest") {
  CHECK(printable("plain é 漢\n\t\r") == "plain é 漢\n\t\r");
  CHECK(printable("") == "");
  CHECK(printable("cut \xF0\x9F\x98") == "cut \uFFFD");
  CHECK(printable("\xFF\xFE") == "\uFFFD\uFFFD");
  CHECK(printable("a\xC3"
                  "b") ==
        "a\uFFFD"
        "b");
  CHECK(printable("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");
  CHECK(printable("\x1B[2J\0\x7F\u009B"s) == "\uFFFD[2J\uFFFD\uFFFD\uFFFD");
}

TEST_CASE("train/tokenizer: random bytes never break the decoder and printable gives valid UTF-8") {
  // Three kinds of bytes: any, mostly ASCII, and only those that begin or continue long characters.
  Generator random(2024);
  int invalid = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random.next()[0] % 64, '\0');
    for (char& byte : bytes) {
      const auto [word, choice, unused0, unused1] = random.next();
      const uint32_t any = word & 0xFF;
      byte = static_cast<char>(round % 3 == 0   ? any
                               : round % 3 == 1 ? (choice % 8 ? any & 0x7F : any)
                                                : any | 0x80);
    }
    size_t walked = 0;
    while (walked < bytes.size()) {
      const size_t length = decode_utf8(std::string_view(bytes).substr(walked)).length;
      REQUIRE(length >= 1);
      REQUIRE(length <= bytes.size() - walked);
      walked += length;
    }
    invalid += !valid_utf8(bytes);
    const std::string shown = printable(bytes);
    REQUIRE(valid_utf8(shown));
    REQUIRE(printable(shown) == shown);
    if (!valid_utf8(bytes)) CHECK_THROWS_AS(Tokenizer::make("char", bytes), Error);
  }
  CHECK(invalid > 1000);  // the strings do contain what they are to test
}

TEST_CASE("train/tokenizer: bytes round trip exactly") {
  const Tokenizer tokenizer = Tokenizer::make("byte", "any text");
  CHECK(tokenizer.kind() == "byte");
  CHECK(tokenizer.vocabulary_size() == 256);
  CHECK(tokenizer.encode("A\xFF\0"s) == Ids{65, 255, 0});
  CHECK(tokenizer.decode(tokenizer.encode(every_byte())) == every_byte());
  for (const std::string& text : hard_texts) CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  const std::string long_line(1 << 20, 'x');
  CHECK(tokenizer.decode(tokenizer.encode(long_line)) == long_line);
}

TEST_CASE("train/tokenizer: characters are sorted by code point and round trip exactly") {
  const Tokenizer tokenizer = Tokenizer::make("char", "b\U0001F600aéb\uFFFDa\n");
  CHECK(tokenizer.kind() == "char");
  CHECK(tokenizer.vocabulary_size() == 6);
  CHECK(tokenizer.encode("\nabé\uFFFD\U0001F600") == Ids{0, 1, 2, 3, 4, 5});
  CHECK(tokenizer.decode(Ids{3, 0, 5}) == "é\n\U0001F600");
  for (const std::string& text : hard_texts) {
    if (text.empty()) continue;
    const Tokenizer own = Tokenizer::make("char", text);
    CHECK(own.decode(own.encode(text)) == text);
    CHECK(own.encode("").empty());
  }
}

TEST_CASE("train/tokenizer: carriage return and NUL and byte order mark are characters") {
  const Tokenizer tokenizer = Tokenizer::make("char", "\uFEFFa\r\n\0"s);
  CHECK(tokenizer.vocabulary_size() == 5);
  CHECK(tokenizer.encode("\0\n\ra\uFEFF"s) == Ids{0, 1, 2, 3, 4});
}

TEST_CASE("train/tokenizer: byte length counts what the ids decode to") {
  const std::string text = "aé漢\U0001F600";
  const Tokenizer characters = Tokenizer::make("char", text);
  const Tokenizer bytes = Tokenizer::make("byte", text);
  CHECK(characters.encode(text).size() == 4);
  CHECK(characters.byte_length(characters.encode(text)) == 10);
  CHECK(bytes.byte_length(bytes.encode(text)) == 10);
  CHECK(bytes.byte_length({}) == 0);
}

TEST_CASE("train/tokenizer: an unknown kind names the known ones and the nearest") {
  const auto error = [](std::string_view kind) {
    return message_of<UsageError>([&] { Tokenizer::make(kind, "text"); });
  };
  CHECK(error("chra") == "[tokenizer] unknown tokenizer 'chra'; known: byte, char; did you mean 'char'?");
  CHECK(error("wordpiece") == "[tokenizer] unknown tokenizer 'wordpiece'; known: byte, char");
  CHECK(contains(error(""), "known: byte, char"));
  CHECK(contains(message_of<UsageError>([] { Tokenizer::make("char", ""); }), "empty text"));
}

TEST_CASE("train/tokenizer: text that is no UTF-8 is reported with byte and line") {
  const auto error = [](std::string_view text) {
    return message_of<Error>([&] { Tokenizer::make("char", text); });
  };
  CHECK(error("caf\xE9 latin") ==
        "[tokenizer] the text is not valid UTF-8 at byte 3 (line 1): \\xE9; --tokenizer byte takes any data");
  CHECK(contains(error("é\nb\r\n\xFF"), "at byte 6 (line 3): \\xFF"));
  CHECK(contains(error("a\n\xF0\x9F\x98"), "at byte 2 (line 2): \\xF0"));
  CHECK(contains(error("overlong \xC0\xAF"), "at byte 9 (line 1)"));

  const Tokenizer tokenizer = Tokenizer::make("char", "abc");
  CHECK(contains(message_of<UsageError>([&] { tokenizer.encode("ab\xFF"); }), "at byte 2 (line 1): \\xFF"));
}

TEST_CASE("train/tokenizer: a character outside the vocabulary is named with its position") {
  const Tokenizer tokenizer = Tokenizer::make("char", "abcé");
  const auto error = [&](std::string_view text) {
    return message_of<UsageError>([&] { tokenizer.encode(text); });
  };
  CHECK(error("éaλb") ==
        "[tokenizer] character 'λ' (U+03BB) at character index 2 is not in the vocabulary of 4 characters");
  CHECK(contains(error("\U0001F600"), "(U+1F600) at character index 0"));
  CHECK(contains(error("ab\n"), "character '\\n' (U+000A) at character index 2"));
  CHECK(contains(error("d"), "'d' (U+0064)"));
}

TEST_CASE("train/tokenizer: an id outside the vocabulary is an error everywhere") {
  const Tokenizer characters = Tokenizer::make("char", "abc");
  const Tokenizer bytes = Tokenizer::make("byte", "");
  for (const int32_t id :
       {-1, 3, 256, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    CAPTURE(id);
    const Ids ids = {0, id};
    const std::string expected = str("[tokenizer] token id ", id, " is outside the vocabulary of 3 tokens");
    CHECK(message_of<Error>([&] { characters.decode(ids); }) == expected);
    CHECK(message_of<Error>([&] { characters.byte_length(ids); }) == expected);
    CHECK(message_of<Error>([&] { characters.token_text(id); }) == expected);
    if (id != 3) CHECK_THROWS_AS(bytes.decode(ids), Error);
  }
}

TEST_CASE("train/tokenizer: every token has its own printable text") {
  const Tokenizer bytes = Tokenizer::make("byte", "");
  CHECK(bytes.token_text('a') == "a");
  CHECK(bytes.token_text('\n') == "\\n");
  CHECK(bytes.token_text('\r') == "\\r");
  CHECK(bytes.token_text('\t') == "\\t");
  CHECK(bytes.token_text('\\') == "\\\\");
  CHECK(bytes.token_text(' ') == "␣");
  CHECK(bytes.token_text(0) == "\\x00");
  CHECK(bytes.token_text(0x1B) == "\\x1B");
  CHECK(bytes.token_text(0x7F) == "\\x7F");
  CHECK(bytes.token_text(0xE9) == "\\xE9");

  const Tokenizer characters = Tokenizer::make("char", "é\u0080\u00A0\u200B\uFEFF\0"s);
  const std::vector<std::string> expected = {"\\x00", "\\u{0080}", "\\u{00A0}",
                                             "é",     "\\u{200B}", "\\u{FEFF}"};
  for (int32_t id = 0; id < 6; ++id) CHECK(characters.token_text(id) == expected[static_cast<size_t>(id)]);
}

TEST_CASE("train/tokenizer: the vocabulary survives JSON text") {
  for (const std::string& text : hard_texts) {
    for (const std::string& kind : Tokenizer::kinds()) {
      if (kind == "char" && text.empty()) continue;
      const Tokenizer tokenizer = Tokenizer::make(kind, text);
      const std::string stored = tokenizer.to_json().dump();
      const Tokenizer loaded = Tokenizer::from_json(nlohmann::json::parse(stored));
      CHECK(loaded == tokenizer);
      CHECK(loaded.encode(text) == tokenizer.encode(text));
      CHECK(loaded.to_json().dump() == stored);
    }
  }
  CHECK(Tokenizer::make("char", "cab\n").to_json().dump() == R"({"characters":"\nabc","kind":"char"})");
  CHECK(Tokenizer::make("byte", "x").to_json().dump() == R"({"kind":"byte"})");
}

TEST_CASE("train/tokenizer: stored vocabularies that can not be ours are refused") {
  const auto error = [](const nlohmann::json& json) {
    const std::string message = message_of<Error>([&] { Tokenizer::from_json(json); });
    CHECK(message.starts_with("[tokenizer] "));
    CHECK_FALSE(contains(message, "\n"));
    return message;
  };
  using Json = nlohmann::json;
  CHECK(contains(error(Json()), "is a JSON null"));
  CHECK(contains(error(Json::array({"byte"})), "is a JSON array"));
  CHECK(contains(error(Json::object()), "no text 'kind'"));
  CHECK(contains(error({{"kind", 7}}), "no text 'kind'"));
  CHECK(contains(error({{"kind", "b\npe"}}), R"(unknown kind "b\npe"; known: byte, char)"));
  CHECK(contains(error({{"kind", "byte"}, {"characters", "abc"}}), "2 entries; expected 1"));
  CHECK(contains(error({{"kind", "char"}}), "1 entries; expected 2"));
  CHECK(contains(error({{"kind", "char"}, {"letters", "abc"}}), "no text 'characters'"));
  CHECK(contains(error({{"kind", "char"}, {"characters", Json::array({"a", "b"})}}), "no text 'characters'"));
  CHECK(contains(error({{"kind", "char"}, {"characters", "abc"}, {"size", 3}}), "3 entries; expected 2"));
  CHECK(contains(error({{"kind", "char"}, {"characters", ""}}), "no characters"));
  CHECK(contains(error({{"kind", "char"}, {"characters", "aab"}}), "distinct and in code point order"));
  CHECK(contains(error({{"kind", "char"}, {"characters", "ba"}}), "distinct and in code point order"));
  CHECK(contains(error({{"kind", "char"}, {"characters", "a\xFF"}}), "not valid UTF-8 at byte 1"));
}

}  // namespace mixgrad
