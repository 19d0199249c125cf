// Writing a whole file so that a reader, or a crash, never meets half of it.
#pragma once

#include <filesystem>
#include <string_view>

#include "tensor/files.h"

namespace mixgrad {

/// Makes bytes the whole content of the file at path: they are written to "path.tmp" beside it, flushed to
/// the disk, then renamed over path. Throws Error with path and reason (the system's: disk full, read-only,
/// no such directory; or that something other than a regular file is there); the temporary file is then gone
/// and what was at path is as it was.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

}  // namespace mixgrad
