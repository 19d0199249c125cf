// read_text: plain and gzip files byte for byte, and one distinct line for everything that can be wrong with
// a file.
#include "train/text.h"

#include <doctest/doctest.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "tensor/error.h"
#include "tests/train/scratch_files.h"

namespace mixgrad {
namespace {

/// Writes a file and says where it is.
std::filesystem::path write(const ScratchFolder& folder, std::string_view name, std::string_view bytes) {
  write_bytes(folder / name, bytes);
  return folder / name;
}

/// One gzip member, with dictzip's kind of extra field when `extra` isn't empty.
std::string gzip(std::string_view text, std::string extra = "") {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  gz_header header{};
  header.extra = extra.empty() ? Z_NULL : reinterpret_cast<Bytef*>(extra.data());
  header.extra_len = static_cast<uInt>(extra.size());
  REQUIRE(deflateSetHeader(&stream, &header) == Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  std::string in(text);
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// The message of read_text's Error, which must be one line that names the path; "" when it reads.
std::string read_error(const std::filesystem::path& path) {
  try {
    read_text(path);
  } catch (const Error& error) {
    const std::string message = error.what();
    CHECK(message.starts_with("[text] " + path.string() + ": "));
    CHECK(message.find('\n') == std::string::npos);
    return message;
  }
  return "";
}

const std::string sample_text =
    "The quick brown fox\njumps over the lazy dog.\r\nThe quick brown dog sleeps on.\n";

/// Text that hardly compresses, from a linear congruential generator.
std::string noise(size_t size) {
  std::string bytes(size, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  return bytes;
}

}  // namespace

TEST_CASE("train/text: a plain file is returned byte for byte") {
  const ScratchFolder folder;
  using namespace std::string_literals;
  for (const std::string& bytes :
       {"no final newline"s, "a\r\nb\rc\n"s, "\xEF\xBB\xBF with a byte order mark\n"s, "nul \0 inside\0"s,
        "\xFF\xFE\x80"s, "\xF0\x9F\x98"s, "\n"s, "\0"s, "\x1f"s}) {
    CHECK(read_text(write(folder, "plain.txt", bytes)) == bytes);
  }
  const std::string one_long_line(std::size_t{16} << 20, 'x');
  CHECK(read_text(write(folder, "long.txt", one_long_line)) == one_long_line);
}

TEST_CASE("train/text: gzip data is known by its first bytes and not by its name") {
  const ScratchFolder folder;
  CHECK(read_text(write(folder, "a.gz", gzip(sample_text))) == sample_text);
  CHECK(read_text(write(folder, "a.txt", gzip(sample_text))) == sample_text);
  const std::string binary("\0\xFF\x1f\x8b\r\n\0", 7);
  CHECK(read_text(write(folder, "b.gz", gzip(binary))) == binary);
}

TEST_CASE("train/text: dictzip and several members and zero padding are read whole") {
  const ScratchFolder folder;
  const std::string extra("RA\x0a\0\1\0\x4a\xe3\2\0\x10\0\x20\0", 14);
  CHECK(read_text(write(folder, "a.dict.dz", gzip(sample_text, extra))) == sample_text);
  const std::string members = gzip("one ") + gzip("") + gzip("two ") + gzip("three");
  CHECK(read_text(write(folder, "members.gz", members)) == "one two three");
  CHECK(read_text(write(folder, "padded.gz", members + std::string(1000, '\0'))) == "one two three");
}

TEST_CASE("train/text: gzip data around the size of the internal chunks is read whole") {
  const ScratchFolder folder;
  const size_t chunk = size_t{1} << 18;
  for (const size_t size : {size_t{1}, chunk - 1, chunk, chunk + 1, 2 * chunk, 5 * chunk + 3}) {
    const std::string random = noise(size), same(size, 'z');
    CHECK(read_text(write(folder, "random.gz", gzip(random))) == random);
    CHECK(read_text(write(folder, "same.gz", gzip(same))) == same);
  }
}

TEST_CASE("train/text: missing and unreadable files and directories have distinct errors") {
  const ScratchFolder folder;
  CHECK(contains(read_error(folder / "absent.txt"), "no such file"));
  CHECK(contains(read_error(folder.path()), "is a directory"));

  std::filesystem::create_symlink("loop.txt", folder / "loop.txt");
  CHECK(contains(read_error(folder / "loop.txt"), "can't be opened: Too many levels of symbolic links"));
  const auto file = write(folder, "file.txt", "text");
  CHECK(contains(read_error(file / "below.txt"), "can't be opened: Not a directory"));
  if (geteuid() != 0) {
    std::filesystem::permissions(file, std::filesystem::perms::none);
    CHECK(contains(read_error(file), "can't be opened: Permission denied"));
  }
  // Address 0 of a process isn't mapped: Linux lets the file be opened, and the first read fails.
  if (std::filesystem::exists("/proc/self/mem")) {
    CHECK(contains(read_error("/proc/self/mem"), "can't be read: Input/output error"));
  }
}

TEST_CASE("train/text: an empty text is an error before and after decompression") {
  const ScratchFolder folder;
  CHECK(contains(read_error(write(folder, "empty.txt", "")), "the file is empty"));
  CHECK(contains(read_error(write(folder, "empty.gz", "")), "the file is empty"));
  CHECK(contains(read_error(write(folder, "nothing.gz", gzip(""))), "empty after decompression"));
}

TEST_CASE("train/text: a file named as gzip that is something else is refused") {
  const ScratchFolder folder;
  CHECK(contains(read_error(write(folder, "page.gz", "<html>404 not found</html>")),
                 "named .gz but not gzip data"));
  CHECK(contains(read_error(write(folder, "text.dict.dz", sample_text)), "named .dz but not gzip data"));
  CHECK(contains(read_error(write(folder, "one.gz", "\x1f")), "named .gz but not gzip data"));
  // Two magic bytes make it gzip data; the third has to say deflate.
  CHECK(contains(read_error(write(folder, "method.gz", "\x1f\x8b\x07 and more text")),
                 "corrupt: unknown compression"));
}

TEST_CASE("train/text: gzip data cut anywhere is truncated and never half read") {
  const ScratchFolder folder;
  const std::string whole = gzip(sample_text);
  const size_t trailer = whole.size() - 8;
  for (size_t size = 2; size < whole.size(); ++size) {
    CAPTURE(size);
    const std::string message = read_error(write(folder, "cut.gz", whole.substr(0, size)));
    CHECK(contains(message, size < trailer ? "truncated: it ends inside the compressed text"
                                           : "truncated: it ends inside its trailer"));
  }
  const std::string second_cut = gzip("first member") + whole.substr(0, whole.size() / 2);
  CHECK(contains(read_error(write(folder, "second.gz", second_cut)),
                 "truncated: it ends inside the compressed text"));

  const std::string large = gzip(noise(1000000));
  CHECK(contains(read_error(write(folder, "half.gz", large.substr(0, large.size() / 2))),
                 "inside the compressed text"));
  CHECK(
      contains(read_error(write(folder, "end.gz", large.substr(0, large.size() - 3))), "inside its trailer"));
}

TEST_CASE("train/text: flipped bits are noticed and never give another text") {
  const ScratchFolder folder;
  const std::string whole = gzip(sample_text);
  // Free bits: the header's text flag, time and system, and the padding of the last compressed byte.
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    CAPTURE(bit);
    std::string broken = whole;
    broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ (1 << bit % 8));
    const std::filesystem::path path = write(folder, "broken.gz", broken);
    if (read_error(path).empty()) CHECK(read_text(path) == sample_text);
  }
  constexpr size_t header_size = 10;
  for (size_t at = header_size; at < whole.size(); ++at) {
    CAPTURE(at);
    std::string broken = whole;
    broken[at] = static_cast<char>(~broken[at]);
    CHECK(read_error(write(folder, "broken.gz", broken)) != "");
  }
  const auto flipped = [&](size_t from_end) {
    std::string broken = whole;
    broken[whole.size() - from_end] = static_cast<char>(broken[whole.size() - from_end] ^ 1);
    return read_error(write(folder, "broken.gz", broken));
  };
  CHECK(contains(flipped(8), "corrupt: incorrect data check"));
  CHECK(contains(flipped(4), "corrupt: incorrect length check"));

  std::string large =
      gzip(noise(1000000));  // stored blocks: the flip can only be seen by the CRC, at the very end
  large[large.size() / 2] = static_cast<char>(large[large.size() / 2] ^ 1);
  CHECK(contains(read_error(write(folder, "large.gz", large)), "corrupt: incorrect data check"));
}

TEST_CASE("train/text: anything but zeros after the last member is an error") {
  const ScratchFolder folder;
  const std::string whole = gzip(sample_text);
  const std::string expected = str("ends at byte ", whole.size(), " and something else follows");
  CHECK(contains(read_error(write(folder, "garbage.gz", whole + "garbage")), expected));
  CHECK(contains(read_error(write(folder, "one.gz", whole + "\x1f")), expected));
  CHECK(contains(read_error(write(folder, "late.gz", whole + std::string(10, '\0') + "x")), expected));
}

TEST_CASE("train/text: the Jargon File of the dictionary package is read") {
  const std::filesystem::path jargon = "/usr/share/dictd/jargon.dict.dz";
  if (!std::filesystem::exists(jargon)) {
    MESSAGE("skipped: ", jargon.string(), " is not here (Debian package dict-jargon)");
    return;
  }
  const std::string text = read_text(jargon);
  MESSAGE(jargon.string(), ": ", text.size(), " bytes");
  CHECK(text.size() > 1000000);
  CHECK(contains(text, "hacker"));
}

}  // namespace mixgrad
