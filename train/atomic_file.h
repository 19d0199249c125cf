// Writing a whole file so that a reader, or a crash, never meets half of it; and the POSIX pieces that this
// takes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace mixgrad {

/// Makes bytes the whole content of the file at path: they are written to "path.tmp" beside it, flushed to
/// the disk, then renamed over path. Throws Error with path and the system's reason (disk full, read-only, no
/// such directory); the temporary file is then gone and an older file at path is as it was.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

/// An open file descriptor (POSIX), closed at the end of its scope. Negative when opening failed.
class FileDescriptor {
 public:
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

/// Writes all of bytes to an open file descriptor, however many calls that takes. False, with errno set, on
/// failure.
bool write_fully(int descriptor, std::string_view bytes);

/// The system's words for an errno value, such as "No space left on device".
std::string errno_text(int error);

}  // namespace mixgrad
