// The safetensors reader and writer: values and bytes, everything that a file can have wrong, and failing
// disks.
#include "tensor/safetensors.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "tensor/allocator.h"
#include "tensor/random.h"
#include "tests/train/scratch_files.h"

namespace mixgrad {
namespace {

/// A file's bytes from its header and data: what a writer that respects no rule would write.
std::string file_of(const std::string& header, std::string_view data = "") {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes.append(header).append(data);
}

/// One tensor "w" described by the given JSON, and so many bytes of data.
std::string file_of_one(const std::string& description, size_t data_bytes) {
  return file_of("{\"w\":" + description + "}", std::string(data_bytes, '\1'));
}

/// The reader's complaint about such a file without the part that every complaint has to begin with:
/// "[safetensors] path: ". Empty when the file loads.
std::string complaint(std::string_view bytes) {
  const ScratchFolder folder;
  const auto path = folder / "file.safetensors";
  write_bytes(path, bytes);
  try {
    read_safetensors(path);
  } catch (const Error& error) {
    const std::string message = error.what(), start = "[safetensors] " + path.string() + ": ";
    CHECK(message.starts_with(start));
    CHECK(std::all_of(message.begin(), message.end(), [](char c) { return c >= ' ' && c <= '~'; }));
    return message.substr(std::min(message.size(), start.size()));
  }
  return "";
}

/// A small file that has everything: several types, an empty tensor, a scalar, metadata.
std::string valid_file() {
  const ScratchFolder folder;
  write_safetensors(folder / "valid",
                    {{"w", Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3})},
                     {"empty", Tensor::zeros({0, 7}, DType::float32)},
                     {"scalar", Tensor::full({}, 2.5, DType::float64)},
                     {"ids", Tensor::from<int32_t>({-1, 7}, {2})}},
                    {{"by", "test"}});
  return file_bytes(folder / "valid");
}

TEST_CASE("tensor/safetensors: what is written is read back bit for bit") {
  const ScratchFolder folder;
  Tensor half = Tensor::empty({3}, DType::bfloat16);
  const uint16_t half_bits[3] = {0x3F80, 0xC000, 0x7FC1};  // 1, -2, a NaN with a payload
  std::memcpy(half.raw_data(), half_bits, sizeof half_bits);
  const Tensor table = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  const Metadata metadata = {{"", "empty key"}, {"text", "two\nlines, \"quotes\", \xC3\xA9 and \x01"}};
  write_safetensors(folder / "file",
                    {{"z/first \xC3\xA9", table.narrow(0, 1, 2)},
                     {"a", Tensor::full({}, -0.1, DType::float64)},
                     {"half", half},
                     {"none", Tensor::zeros({2, 0, 3}, DType::float32)},
                     {"wide", Tensor::from<int64_t>({int64_t{-1} << 62, 5}, {1, 1, 1, 1, 1, 2})},
                     {"ids", Tensor::from<int32_t>({-7}, {1})}},
                    metadata);

  const SafetensorsFile file = read_safetensors(folder / "file");
  CHECK(file.metadata == metadata);
  REQUIRE(file.tensors.size() == 6);
  CHECK(file.tensors.at("z/first \xC3\xA9").shape() == Shape{2, 2});
  CHECK(file.tensors.at("z/first \xC3\xA9").to_vector() == std::vector<double>{3, 4, 5, 6});
  CHECK(file.tensors.at("a").shape() == Shape{});
  CHECK(file.tensors.at("a").item() == -0.1);
  CHECK(file.tensors.at("half").dtype() == DType::bfloat16);
  CHECK(std::memcmp(file.tensors.at("half").raw_data(), half_bits, sizeof half_bits) == 0);
  CHECK(file.tensors.at("none").shape() == Shape{2, 0, 3});
  CHECK(file.tensors.at("wide").data<int64_t>()[0] == int64_t{-1} << 62);
  CHECK(file.tensors.at("wide").shape().rank() == 6);
  CHECK(file.tensors.at("ids").data<int32_t>()[0] == -7);
}

TEST_CASE("tensor/safetensors: the bytes are those that the format asks for") {
  const ScratchFolder folder;
  const NamedTensors tensors = {{"b", Tensor::from<int32_t>({1, 2}, {2, 1})},
                                {"a", Tensor::full({}, 3, DType::int64)}};
  write_safetensors(folder / "file", tensors, {{"k", "v"}});
  std::string header = R"({"__metadata__":{"k":"v"},"b":{"data_offsets":[0,8],"dtype":"I32","shape":[2,1]},)"
                       R"("a":{"data_offsets":[8,16],"dtype":"I64","shape":[]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::string data("\1\0\0\0\2\0\0\0\3\0\0\0\0\0\0\0", 16);
  CHECK(file_bytes(folder / "file") == file_of(header, data));

  write_safetensors(folder / "none", {});
  CHECK(file_bytes(folder / "none") == file_of("{}      "));
  CHECK(read_safetensors(folder / "none").tensors.empty());
}

TEST_CASE("tensor/safetensors: files of other writers load") {
  CHECK(complaint(file_of("{}")) == "");
  CHECK(complaint(file_of(R"({"__metadata__":{"only":"metadata"}})")) == "");
  CHECK(complaint(file_of_one(R"({"dtype":"F32","shape":[],"data_offsets":[0,4]})", 4)) == "");
  CHECK(complaint(
            file_of_one(" { \"shape\" : [ 2 , 0 ],\n\"data_offsets\":[0,0],\t\"dtype\":\"F64\"} ", 0)) == "");
  // Announced in another order than their data, with an empty one in between.
  CHECK(complaint(file_of(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
                          R"("e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},)"
                          R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                          "12345678")) == "");
}

TEST_CASE("tensor/safetensors: a file cut anywhere says how much is missing") {
  const std::string whole = valid_file();
  CHECK(complaint(whole) == "");
  const std::string size = std::to_string(whole.size());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, whole.data(), 8);
  CHECK(complaint("") == "truncated: expected at least 8 bytes, got 0");
  CHECK(complaint(whole.substr(0, 4)) == "truncated: expected at least 8 bytes, got 4");
  const std::string header_end = std::to_string(8 + header_bytes);
  CHECK(complaint(whole.substr(0, 8)) == "truncated: expected " + header_end + " bytes, got 8");
  CHECK(complaint(whole.substr(0, 50)) == "truncated: expected " + header_end + " bytes, got 50");
  CHECK(complaint(whole.substr(0, 8 + header_bytes)) ==
        "truncated: expected " + size + " bytes, got " + header_end);
  CHECK(complaint(whole.substr(0, whole.size() - 1)) ==
        "truncated: expected " + size + " bytes, got " + std::to_string(whole.size() - 1));
  CHECK(complaint(whole + "x") ==
        "trailing bytes: expected " + size + " bytes, got " + std::to_string(whole.size() + 1));
}

TEST_CASE("tensor/safetensors: impossible header lengths are refused") {
  const auto with_length = [](uint64_t length) {
    std::string bytes = valid_file();
    std::memcpy(bytes.data(), &length, 8);
    return complaint(bytes);
  };
  CHECK(with_length(uint64_t{1} << 63) ==
        "a header of 9223372036854775808 bytes; at most 100000000 are allowed");
  CHECK(contains(with_length(~uint64_t{0}), "at most 100000000 are allowed"));
  CHECK(contains(with_length(100'000'001), "at most 100000000 are allowed"));
  CHECK(contains(with_length(100'000'000), "truncated: expected 100000008 bytes, got "));
  CHECK(with_length(0) == "the header is not an object");
}

TEST_CASE("tensor/safetensors: headers that are not the JSON they should be are refused") {
  for (const char* header : {"[]", "7", "\"text\"", "null", " {}", "\xEF\xBB\xBF{}"}) {
    CHECK(complaint(file_of(header)) == "the header is not an object");
  }
  for (const char* header :
       {"{", "{}{}", "{\"a\"}", "{\"a\":}", "{,}", "{\"a\":{\"dtype\":\"F32\",}}", "{'a':1}", "{\"\xFF\":{}}",
        "{\"__metadata__\":{\"k\":\"\xC3\"}}", "{\"\xED\xA0\x80\":{}}", "{\"line\nbreak\":{}}"}) {
    CHECK(contains(complaint(file_of(header)), "the header is not valid JSON in UTF-8, from its byte "));
  }
  CHECK(complaint(file_of(std::string("{}\0{", 4))) ==
        "the header is not valid JSON in UTF-8, from its byte 3");
  CHECK(complaint(file_of(R"({"w":7})")) == R"(the description of "w" is a number instead of an object)");
  CHECK(complaint(file_of(R"({"w":[]})")) == R"(the description of "w" is an array instead of an object)");
  CHECK(complaint(file_of(R"({"w":null})")) == R"(the description of "w" is null instead of an object)");
}

TEST_CASE("tensor/safetensors: no nesting is too deep to be refused") {
  const std::string arrays(1'000'000, '['), objects = [] {
    std::string text;
    for (int i = 0; i < 200'000; ++i) text += "{\"a\":";
    return text;
  }();
  CHECK(contains(complaint(file_of(objects)), "unknown field \"a\""));
  CHECK(contains(complaint(file_of("{\"a\":" + arrays)), "is an array instead of an object"));
  CHECK(contains(complaint(file_of("{\"a\":{\"shape\":" + arrays)), "an array"));
  CHECK(contains(complaint(file_of("{\"a\":{\"shape\":" + objects)), "an object"));
  CHECK(contains(complaint(file_of("{\"__metadata__\":{\"k\":" + arrays)), "an array instead of text"));
}

TEST_CASE("tensor/safetensors: duplicate names and fields are refused") {
  const std::string w = R"("w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  CHECK(complaint(file_of("{" + w + "," + w + "}", "1234")) == R"(the name "w" occurs twice)");
  CHECK(complaint(file_of(R"({"__metadata__":{},"__metadata__":{}})")) ==
        R"(the name "__metadata__" occurs twice)");
  CHECK(complaint(file_of(R"({"__metadata__":{"k":"1","k":"2"}})")) ==
        R"(the metadata key "k" occurs twice)");
  CHECK(complaint(file_of_one(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})", 4)) ==
        R"(tensor "w" has two fields dtype)");
}

TEST_CASE("tensor/safetensors: descriptions that lack or exceed what they should say are refused") {
  CHECK(complaint(file_of_one(R"({"shape":[1],"data_offsets":[0,4]})", 4)) == R"(tensor "w" has no dtype)");
  CHECK(complaint(file_of_one(R"({"dtype":"F32","data_offsets":[0,4]})", 4)) == R"(tensor "w" has no shape)");
  CHECK(complaint(file_of_one(R"({"dtype":"F32","shape":[1]})", 4)) == R"(tensor "w" has no data_offsets)");
  CHECK(complaint(file_of_one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1})", 4)) ==
        R"(tensor "w" has an unknown field "x")");
  CHECK(complaint(file_of_one(R"({"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]})", 1)) ==
        R"(tensor "w" has element type "F8_E4M3"; known: F32, F64, BF16, I32, I64)");
  CHECK(contains(complaint(file_of_one(R"({"dtype":7,"shape":[1],"data_offsets":[0,4]})", 4)),
                 "the dtype of tensor"));
  CHECK(contains(complaint(file_of_one(R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})", 4)),
                 "the shape of tensor"));
  CHECK(complaint(file_of_one(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[0,4]})", 4)) ==
        R"(tensor "w" has more than 6 axes)");
  for (const char* value : {"7", "null", "true", "[]", "{}", "1.5"}) {
    CHECK(contains(complaint(file_of(str(R"({"__metadata__":{"k":)", value, "}}"))), "instead of text"));
  }
}

TEST_CASE("tensor/safetensors: offsets are not believed") {
  const auto with_offsets = [](const std::string& offsets) {
    return complaint(file_of_one(R"({"dtype":"F32","shape":[1],"data_offsets":)" + offsets + "}", 4));
  };
  CHECK(with_offsets("[0,4]") == "");
  CHECK(
      contains(with_offsets("[-4,0]"), "the data_offsets of tensor \"w\" can't be or hold what is negative"));
  CHECK(contains(with_offsets("[0.0,4.0]"), "a fraction"));
  CHECK(contains(with_offsets("[0,4e0]"), "a fraction"));
  CHECK(contains(with_offsets("[\"0\",\"4\"]"), "text"));
  CHECK(contains(with_offsets("[0,null]"), "null"));
  CHECK(contains(with_offsets("[0,9223372036854775808]"), "as large as 9223372036854775808"));
  CHECK(contains(with_offsets("[0,99999999999999999999]"), "too large"));
  CHECK(contains(with_offsets("[0,1e999]"), "not valid JSON"));
  CHECK(with_offsets("[]") == R"(tensor "w" has 0 data_offsets instead of 2)");
  CHECK(with_offsets("[0]") == R"(tensor "w" has 1 data_offsets instead of 2)");
  CHECK(with_offsets("[0,4,8]") == R"(tensor "w" has more than 2 data_offsets)");
  CHECK(with_offsets("[4,0]") == R"(tensor "w" ends at byte 0 before it begins at 4)");
  CHECK(with_offsets("[0,8]") ==
        R"(tensor "w" of shape (1) and type float32 takes 4 bytes, but its data_offsets span 8)");
  CHECK(with_offsets("[4,8]") == R"(a hole of 4 bytes before tensor "w")");
  CHECK(contains(with_offsets("[9223372036854775803,9223372036854775807]"), "a hole of "));
}

TEST_CASE("tensor/safetensors: shapes are not believed and take no memory") {
  Allocator& allocator = Allocator::of({});
  allocator.reset_peak();
  const int64_t before = allocator.stats().peak_bytes;
  const auto with_shape = [](const std::string& shape, int64_t span) {
    return complaint(
        file_of_one(str(R"({"dtype":"F32","shape":)", shape, R"(,"data_offsets":[0,)", span, "]}"), 4));
  };
  CHECK(
      contains(with_shape("[4294967296,4294967296]", 0), "has an impossible shape (4294967296, 4294967296)"));
  CHECK(contains(with_shape("[2147483648,2147483648]", 0),
                 "has an impossible shape"));  // 2^62 elements, 2^64 bytes
  CHECK(contains(with_shape("[0,4294967296,4294967296]", 0), "has an impossible shape"));
  CHECK(contains(with_shape("[-1]", 4), "the shape of tensor \"w\" can't be or hold what is negative"));
  CHECK(contains(with_shape("[1.0]", 4), "a fraction"));
  CHECK(contains(with_shape("[[1]]", 4), "an array"));
  CHECK(contains(with_shape("[2]", 4), "takes 8 bytes"));
  CHECK(contains(with_shape("[0]", 4), "takes 0 bytes"));
  // Consistent in itself, only that the file is 1 TiB short.
  CHECK(contains(with_shape("[274877906944]", int64_t{1} << 40), "truncated: expected 1099511627"));
  CHECK(contains(with_shape("[2305843009213693951]", 9223372036854775804),
                 "truncated: expected 9223372036854775"));
  CHECK(allocator.stats().peak_bytes == before);
}

TEST_CASE("tensor/safetensors: overlaps and holes are refused") {
  const auto two = [](const std::string& first, const std::string& second, const std::string& shape) {
    return complaint(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + first +
                                 R"(},"b":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + second +
                                 "}}",
                             std::string(16, '\1')));
  };
  CHECK(two("[0,8]", "[8,16]", "[2]") == "");
  CHECK(two("[0,8]", "[4,12]", "[2]") == R"(tensor "b" overlaps another at byte 4)");
  CHECK(contains(two("[0,8]", "[0,8]", "[2]"), "overlaps another at byte 0"));
  CHECK(two("[0,8]", "[4,4]", "[0]") == R"(tensor "b" overlaps another at byte 4)");
  CHECK(two("[0,8]", "[12,16]", "[1]") == R"(a hole of 4 bytes before tensor "b")");
  CHECK(two("[8,16]", "[4,8]", "[1]") == R"(a hole of 4 bytes before tensor "b")");
  CHECK(two("[0,8]", "[8,12]", "[1]").starts_with("trailing bytes: "));
}

TEST_CASE("tensor/safetensors: names from a file can not spoil a message") {
  const std::string message = complaint(file_of(R"({"a\n\u001b[31m\u0000é":7})"));
  CHECK(message == R"(the description of "a\n\u001b[31m\u0000\u00e9" is a number instead of an object)");
  const std::string long_name(5000, 'n');
  CHECK(complaint(file_of("{\"" + long_name + "\":7}")).size() < 200);
}

TEST_CASE("tensor/safetensors: many tiny tensors load in time that grows with their number") {
  const ScratchFolder folder;
  NamedTensors tensors;
  for (int i = 0; i < 200'000; ++i)
    tensors.emplace_back("t" + std::to_string(i), Tensor::full({}, i, DType::int32));
  write_safetensors(folder / "many", tensors);
  const SafetensorsFile file =
      read_safetensors(folder / "many");  // quadratic: minutes; the test would time out
  REQUIRE(file.tensors.size() == 200'000);
  CHECK(file.tensors.at("t0").item() == 0);
  CHECK(file.tensors.at("t123456").item() == 123456);
  CHECK(file.tensors.at("t199999").item() == 199999);
}

TEST_CASE("tensor/safetensors: a mutated file loads or is refused by an Error") {
  const ScratchFolder folder;
  const auto path = folder / "mutated";
  const std::string original = valid_file();
  Generator generator(1);
  const auto below = [&](size_t count) { return static_cast<size_t>(generator.uniform() * count); };
  int loaded = 0, refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = original;
    for (size_t change = 0; change <= below(3); ++change) {
      const size_t at = below(bytes.size());
      switch (below(4)) {
        case 0:  // one bit
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
          break;
        case 1:  // one byte, often one that means something in JSON
          bytes[at] = "{}[]\",:0123456789-.eE \xFF"[below(23)];
          break;
        case 2:
          bytes.erase(at, 1 + below(16));
          break;
        default:
          bytes.insert(at, original.substr(below(original.size()), 1 + below(16)));
      }
      if (bytes.empty()) bytes = "x";
    }
    std::filesystem::remove(path);  // a file system may flush a file that is emptied and written again
    write_bytes(path, bytes);
    try {
      read_safetensors(path);
      ++loaded;
    } catch (const Error&) {
      ++refused;
    }
  }
  // Both kinds occur often, or the mutations would test nothing.
  CHECK(loaded > 500);
  CHECK(refused > 10'000);
}

TEST_CASE("tensor/safetensors: what can not be opened is named with the reason") {
  const ScratchFolder folder;
  const auto missing = folder / "missing";
  CHECK(error_of([&] { read_safetensors(missing); }) ==
        "[file] can't read " + missing.string() + ": No such file or directory");
  CHECK(error_of([&] { read_safetensors(folder.path()); }) ==
        "[file] can't read " + folder.path().string() + ": not a regular file");
}

TEST_CASE("tensor/safetensors: a write that fails is reported with the reason") {
  const ScratchFolder folder;
  const NamedTensors tensors = {{"w", Tensor::zeros({100'000}, DType::float32)}};
  CHECK(error_of([&] { write_safetensors("/dev/full", tensors); }) ==
        "[file] can't write /dev/full: No space left on device");
  const auto nowhere = folder / "nowhere/file";
  CHECK(error_of([&] { write_safetensors(nowhere, tensors); }) ==
        "[file] can't write " + nowhere.string() + ": No such file or directory");
  write_bytes(folder / "plain", "x");
  const auto below_file = folder / "plain/file";
  CHECK(error_of([&] { write_safetensors(below_file, tensors); }) ==
        "[file] can't write " + below_file.string() + ": Not a directory");

  const auto path = folder / "limited";
  const std::string message = [&] {
    const DiskLimit limit(100'000);
    return error_of([&] { write_safetensors(path, tensors); });
  }();
  CHECK(message == "[file] can't write " + path.string() + ": File too large");
  CHECK(contains(error_of([&] { read_safetensors(path); }), "truncated: expected 4000"));
}

TEST_CASE("tensor/safetensors: tensors and names that no file can hold are refused") {
  const ScratchFolder folder;
  const Tensor ok = Tensor::zeros({2, 4}, DType::float32);
  const auto refusal = [&](const NamedTensors& tensors, const Metadata& metadata = {}) {
    return error_of([&] { write_safetensors(folder / "file", tensors, metadata); });
  };
  CHECK(contains(refusal({{"w", ok.narrow(1, 0, 2)}}), "tensor \"w\" is not contiguous"));
  CHECK(contains(refusal({{"w", Tensor()}}), "tensor \"w\" is undefined"));
  CHECK(contains(refusal({{"w", ok}, {"v", ok}, {"w", ok}}), "the name \"w\" is taken"));
  CHECK(contains(refusal({{"__metadata__", ok}}), "the name \"__metadata__\" is taken"));
  CHECK(contains(refusal({{"\xFF", ok}}), "not valid UTF-8"));
  CHECK(contains(refusal({{"w", ok}}, {{"k", "\xC3"}}), "not valid UTF-8"));
  CHECK(folder.files() == 0);
}

}  // namespace
}  // namespace mixgrad
