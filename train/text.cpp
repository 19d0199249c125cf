// Reading a corpus: stdio for the file, zlib for gzip data (RFC 1952).
#include "train/text.h"

#define ZLIB_CONST  // zlib promises not to write to its input
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>

#include "tensor/error.h"

namespace mixgrad {
namespace {

constexpr size_t chunk_bytes = size_t{1} << 18;

template <class... Parts>
[[noreturn]] void fail(const std::filesystem::path& path, const Parts&... reason) {
  throw Error(str("[text] ", path.string(), ": ", reason...));
}

std::string read_bytes(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) fail(path, "is a directory; expected a text file");

  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file && errno == ENOENT) fail(path, "no such file");
  if (!file) fail(path, "can't be opened: ", std::strerror(errno));

  // Read to the end rather than to the size in the directory: a pipe has no size and a file may be growing.
  std::string bytes;
  std::string chunk(chunk_bytes, '\0');
  while (const size_t count = std::fread(chunk.data(), 1, chunk.size(), file.get()))
    bytes.append(chunk, 0, count);
  if (std::ferror(file.get())) fail(path, "can't be read: ", std::strerror(errno));
  return bytes;
}

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

/// Decompresses gzip data that lies in memory, one member after the other.
class Gunzip {
 public:
  Gunzip(const std::filesystem::path& path, std::string_view compressed) : path_(path), rest_(compressed) {
    constexpr int largest_window = 15, gzip_only = 16;
    if (inflateInit2(&stream_, largest_window + gzip_only) != Z_OK) throw std::bad_alloc();
  }
  ~Gunzip() { inflateEnd(&stream_); }
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;

  std::string all() {
    const size_t total = rest_.size();
    while (is_gzip(rest_)) member();
    const bool only_padding = std::all_of(rest_.begin(), rest_.end(), [](char byte) { return byte == '\0'; });
    if (!only_padding)
      fail(path_, "the gzip data ends at byte ", total - rest_.size(), " and something else follows");
    return std::move(text_);
  }

 private:
  /// Appends one member's text. zlib checks its CRC and its length.
  void member() {
    inflateReset(&stream_);
    bool in_trailer = false;
    for (int status = Z_OK; status != Z_STREAM_END;) {
      // Z_BLOCK returns after each deflate block, which is the only way to see where the last one ends.
      status = inflate_chunk(Z_BLOCK);
      constexpr int before_trailer = 64 | 128;  // bits of data_type: in the last block, at the end of a block
      in_trailer = in_trailer || (stream_.data_type & before_trailer) == before_trailer;

      if (status == Z_MEM_ERROR) throw std::bad_alloc();
      if (status == Z_BUF_ERROR) {  // no progress, and there was room for output: the input is at its end
        fail(path_, "the gzip data is truncated: it ends inside ",
             in_trailer ? "its trailer (CRC and length)" : "the compressed text");
      }
      if (status != Z_OK && status != Z_STREAM_END) fail(path_, "the gzip data is corrupt: ", stream_.msg);
    }
  }

  /// One call of zlib's inflate: takes what it can from rest_, appends what it gives to text_.
  int inflate_chunk(int flush) {
    stream_.next_in = reinterpret_cast<const Bytef*>(rest_.data());
    stream_.avail_in = static_cast<uInt>(std::min(rest_.size(), chunk_bytes));
    stream_.next_out = reinterpret_cast<Bytef*>(chunk_.data());
    stream_.avail_out = static_cast<uInt>(chunk_.size());
    const int status = inflate(&stream_, flush);
    rest_.remove_prefix(reinterpret_cast<const char*>(stream_.next_in) - rest_.data());
    text_.append(chunk_, 0, chunk_.size() - stream_.avail_out);
    return status;
  }

  const std::filesystem::path& path_;
  std::string_view rest_;  ///< what isn't decompressed yet
  std::string text_;
  std::string chunk_ = std::string(chunk_bytes, '\0');
  z_stream stream_{};
};

}  // namespace

std::string read_text(const std::filesystem::path& path) {
  std::string bytes = read_bytes(path);
  if (bytes.empty()) fail(path, "the file is empty");

  if (!is_gzip(bytes)) {
    const std::filesystem::path extension = path.extension();
    if (extension == ".gz" || extension == ".dz")
      fail(path, "named ", extension.string(), " but not gzip data");
    return bytes;
  }
  std::string text = Gunzip(path, bytes).all();
  if (text.empty()) fail(path, "the gzip data is empty after decompression");
  return text;
}

}  // namespace mixgrad
