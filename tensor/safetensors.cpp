#include "tensor/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>

#include "tensor/files.h"

namespace mixgrad {

namespace {

static_assert(std::endian::native == std::endian::little, "values are copied to and from files as they are");

using Json = nlohmann::json;

constexpr int64_t length_bytes = 8;
constexpr uint64_t max_header_bytes = 100'000'000;
constexpr std::string_view metadata_name = "__metadata__";

struct DTypeCode {
  DType dtype;
  std::string_view code;
};
constexpr DTypeCode dtype_codes[] = {{DType::float32, "F32"},
                                     {DType::float64, "F64"},
                                     {DType::bfloat16, "BF16"},
                                     {DType::int32, "I32"},
                                     {DType::int64, "I64"}};

std::string_view code_of(DType dtype) {
  return std::find_if(std::begin(dtype_codes), std::end(dtype_codes),
                      [&](const DTypeCode& entry) { return entry.dtype == dtype; })
      ->code;
}

/// Text from a file or a caller, made fit for a one-line message when it is written: in quotes, escaped, cut
/// when long.
struct Quoted {
  std::string_view text;
};

std::ostream& operator<<(std::ostream& out, Quoted quoted) {
  constexpr size_t longest = 60;
  const Json shown = std::string(quoted.text.substr(0, longest));
  out << shown.dump(-1, ' ', true, Json::error_handler_t::replace);
  return quoted.text.size() > longest ? out << "..." : out;
}

/// A tensor as the header describes it.
struct Entry {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;
  std::vector<int64_t> offsets;  // begin, end: bytes from the start of the data
};

/// Reads a header event by event rather than into a JSON tree: this sees duplicate names, which a tree drops;
/// refuses by depth, so that no nesting overflows a stack; and takes little memory.
class HeaderParser : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderParser(std::string path) : path_(std::move(path)) {}

  std::vector<Entry> entries;
  Metadata metadata;

  bool start_object(size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::header;
    } else if (place_ == Place::header && key_ == metadata_name) {
      place_ = Place::metadata;
    } else if (place_ == Place::header) {
      place_ = Place::tensor;
      entries.emplace_back().name = key_;
      fields_.clear();
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) fail(tensor_name(), " has no ", field);
      }
    }
    place_ = place_ == Place::header ? Place::outside : Place::header;
    return true;
  }

  bool key(std::string& key) override {
    key_ = key;
    if (place_ == Place::header && !names_.insert(key).second)
      fail("the name ", Quoted{key}, " occurs twice");
    if (place_ == Place::tensor) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        fail(tensor_name(), " has an unknown field ", Quoted{key});
      }
      if (!fields_.insert(key).second) fail(tensor_name(), " has two fields ", key);
    }
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::tensor && key_ == "shape") {
      place_ = Place::shape;
    } else if (place_ == Place::tensor && key_ == "data_offsets") {
      place_ = Place::offsets;
    } else {
      unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && entries.back().offsets.size() != 2) {
      fail(tensor_name(), " has ", entries.back().offsets.size(), " data_offsets instead of 2");
    }
    place_ = Place::tensor;
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets) unexpected("a number");
    if (value > std::numeric_limits<int64_t>::max()) unexpected(str("as large as ", value));
    if (place_ == Place::offsets) {
      if (entries.back().offsets.size() == 2) fail(tensor_name(), " has more than 2 data_offsets");
      entries.back().offsets.push_back(static_cast<int64_t>(value));
    } else {
      if (entries.back().shape.rank() == Shape::max_rank) {
        fail(tensor_name(), " has more than ", int{Shape::max_rank}, " axes");
      }
      entries.back().shape.push_back(static_cast<int64_t>(value));
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::metadata) {
      if (!metadata.emplace(key_, text).second) fail("the metadata key ", Quoted{key_}, " occurs twice");
    } else if (place_ == Place::tensor && key_ == "dtype") {
      entries.back().dtype = parse_dtype(text);
    } else {
      unexpected("text");
    }
    return true;
  }

  bool number_integer(int64_t) override { unexpected("negative"); }
  bool number_float(double, const std::string&) override { unexpected("a fraction or too large"); }
  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a truth value"); }
  bool binary(Json::binary_t&) override { unexpected("binary"); }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail("the header is not valid JSON in UTF-8, from its byte ", position);
  }

 private:
  enum class Place { outside, header, metadata, tensor, shape, offsets };

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(str("[safetensors] ", path_, ": ", parts...));
  }

  [[noreturn]] void unexpected(const std::string& what) const {
    switch (place_) {
      case Place::outside:
        fail("the header is not an object");
      case Place::header:
        fail("the description of ", Quoted{key_}, " is ", what, " instead of an object");
      case Place::metadata:
        fail("the metadata value of ", Quoted{key_}, " is ", what, " instead of text");
      default:
        fail("the ", key_, " of ", tensor_name(), " can't be or hold what is ", what);
    }
  }

  std::string tensor_name() const { return str("tensor ", Quoted{entries.back().name}); }

  DType parse_dtype(const std::string& code) const {
    std::vector<std::string> known;
    for (const auto& entry : dtype_codes) {
      if (entry.code == code) return entry.dtype;
      known.emplace_back(entry.code);
    }
    fail(tensor_name(), " has element type ", Quoted{code}, "; known: ", join(known));
  }

  std::string path_;
  Place place_ = Place::outside;
  std::string key_;                        // the latest
  std::unordered_set<std::string> names_;  // of the tensors, and "__metadata__"
  std::set<std::string> fields_;           // of the current tensor
};

/// Sorts entries by their place in the data and checks that they cover it from 0 without hole or overlap.
/// Returns where the last one ends.
int64_t check_layout(const std::string& where, std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    const int64_t begin = entry.offsets[0], end = entry.offsets[1];
    check(begin <= end, where, "tensor ", Quoted{entry.name}, " ends at byte ", end, " before it begins at ",
          begin);
    const std::optional<int64_t> bytes = byte_size(entry.shape, entry.dtype);
    check(bytes.has_value(), where, "tensor ", Quoted{entry.name}, " has an impossible shape ", entry.shape);
    check(*bytes == end - begin, where, "tensor ", Quoted{entry.name}, " of shape ", entry.shape,
          " and type ", entry.dtype, " takes ", *bytes, " bytes, but its data_offsets span ", end - begin);
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
  int64_t covered = 0;
  for (const Entry& entry : entries) {
    const int64_t begin = entry.offsets[0];
    check(begin >= covered, where, "tensor ", Quoted{entry.name}, " overlaps another at byte ", begin);
    check(begin == covered, where, "a hole of ", begin - covered, " bytes before tensor ",
          Quoted{entry.name});
    covered = entry.offsets[1];
  }
  return covered;
}

/// The header's text, its length checked against the file's before any memory is taken.
std::string read_header(const std::string& where, FileReader& file) {
  check(file.bytes() >= length_bytes, where, "truncated: expected at least ", length_bytes, " bytes, got ",
        file.bytes());
  uint64_t length = 0;
  file.read(&length, length_bytes);
  check(length <= max_header_bytes, where, "a header of ", length, " bytes; at most ", max_header_bytes,
        " are allowed");
  const auto header_bytes = static_cast<int64_t>(length);
  check(length_bytes + header_bytes <= file.bytes(), where, "truncated: expected ",
        length_bytes + header_bytes, " bytes, got ", file.bytes());
  std::string header(length, '\0');
  file.read(header.data(), header_bytes);
  check(header.starts_with('{'), where, "the header is not an object");
  const size_t nul = header.find('\0');  // where the parser would take the header to end
  check(nul == header.npos, where, "the header is not valid JSON in UTF-8, from its byte ", nul + 1);
  return header;
}

/// The text of the header that announces the tensors one after the other.
std::string make_header(const std::string& where, const NamedTensors& tensors, const Metadata& metadata) {
  std::string header;
  const auto add = [&](const std::string& name, const Json& value) {
    header += (header.empty() ? "{" : ",") + Json(name).dump() + ":" + value.dump();
  };
  std::unordered_set<std::string> names{std::string(metadata_name)};
  if (!metadata.empty()) add(std::string(metadata_name), metadata);
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    check(tensor.defined() && tensor.is_contiguous(), where, "tensor ", Quoted{name}, " is ",
          tensor.defined() ? "not contiguous" : "undefined");
    check(names.insert(name).second, where, "the name ", Quoted{name}, " is taken");
    Json shape = Json::array();
    for (int axis = 0; axis < tensor.shape().rank(); ++axis) shape.push_back(tensor.shape()[axis]);
    add(name, {{"dtype", code_of(tensor.dtype())},
               {"shape", shape},
               {"data_offsets", {offset, offset + tensor.bytes()}}});
    offset += tensor.bytes();
  }
  header += header.empty() ? "{}" : "}";
  const size_t padding = (length_bytes - header.size() % length_bytes) % length_bytes;
  header.append(padding, ' ');  // so that the data begins aligned
  check(header.size() <= max_header_bytes, where, "a header of ", header.size(), " bytes; at most ",
        max_header_bytes, " are allowed");
  return header;
}

}  // namespace

SafetensorsFile read_safetensors(const std::filesystem::path& path) {
  const std::string where = str("[safetensors] ", path.string(), ": ");
  FileReader file(path);
  const std::string header = read_header(where, file);
  HeaderParser parser(path.string());
  Json::sax_parse(header, &parser);

  const auto data_begin = static_cast<uint64_t>(length_bytes + header.size());
  const uint64_t expected = data_begin + static_cast<uint64_t>(check_layout(where, parser.entries));
  const auto got = static_cast<uint64_t>(file.bytes());
  check(got >= expected, where, "truncated: expected ", expected, " bytes, got ", got);
  check(got == expected, where, "trailing bytes: expected ", expected, " bytes, got ", got);

  SafetensorsFile contents;
  for (const Entry& entry : parser.entries) {  // in the order of the data
    Tensor tensor = Tensor::empty(entry.shape, entry.dtype);
    file.read(tensor.raw_data(), tensor.bytes());
    contents.tensors.emplace(entry.name, std::move(tensor));
  }
  contents.metadata = std::move(parser.metadata);
  return contents;
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const Metadata& metadata) {
  const std::string where = str("[safetensors] can't write ", path.string(), ": ");
  std::string header;
  try {
    header = make_header(where, tensors, metadata);
  } catch (const Json::exception&) {
    throw Error(where + "a name or metadata text is not valid UTF-8");
  }
  FileWriter file(path);
  const uint64_t length = header.size();
  file.write(&length, length_bytes);
  file.write(header.data(), static_cast<int64_t>(header.size()));
  for (const auto& [name, tensor] : tensors) {
    const Tensor host = tensor.to(Device{});
    file.write(host.raw_data(), host.bytes());
  }
  file.finish();
}

}  // namespace mixgrad
