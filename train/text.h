// Reading a corpus: a whole text file, plain or gzip-compressed, into memory.
#pragma once

#include <filesystem>
#include <string>

namespace mixgrad {

/// The bytes of the file at path, exactly as they are: no line end, encoding or NUL is touched.
///
/// Data that begins with gzip's magic bytes 1f 8b (RFC 1952) is decompressed, whatever the file's name: .gz,
/// the dictionaries' .dz, and several members one after the other; zeros after the last member are padding.
/// Throws Error with one line that names the path when the file is missing, a directory, unreadable or empty,
/// when it is named .gz or .dz without being gzip data, and when the gzip data is truncated, corrupt or
/// followed by something else. Nothing half-read is ever returned.
std::string read_text(const std::filesystem::path& path);

}  // namespace mixgrad
