// Files by POSIX calls: streams lose the reason of a failure, and can't flush to the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace mixgrad {

/// An open file descriptor (POSIX), closed at the end of its scope. Negative when opening failed.
class FileDescriptor {
 public:
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return descriptor_; }
  /// Closes it before its time. False, with errno set, when the system reports a write that failed late.
  bool close();

 private:
  int descriptor_;
};

/// Writes all of bytes to an open file descriptor, however many calls that takes. False, with errno set, on
/// failure.
bool write_fully(int descriptor, std::string_view bytes);

/// The system's words for an errno value, such as "No space left on device".
std::string errno_text(int error);

/// A regular file that is read from front to back. Errors name the path and the system's reason.
class FileReader {
 public:
  /// Throws Error when the file can't be opened or isn't a regular file.
  explicit FileReader(const std::filesystem::path& path);

  /// The file's size when it was opened.
  int64_t bytes() const { return bytes_; }
  /// Reads the next bytes; all of them, or throws Error.
  void read(void* data, int64_t bytes);

 private:
  [[noreturn]] void fail(const std::string& reason) const;

  std::string path_;
  FileDescriptor file_;
  int64_t bytes_ = 0;
};

/// A file that is on the disk once finish() has returned. Errors name the path and the system's reason, and
/// leave an incomplete file behind: write to a temporary name where that matters.
class FileWriter {
 public:
  /// Creates or empties the file.
  explicit FileWriter(const std::filesystem::path& path);

  void write(const void* data, int64_t bytes);
  /// Flushes to the disk and closes. Without this call nothing is promised.
  void finish();

 private:
  void require(bool ok) const;

  std::string path_;
  FileDescriptor file_;
};

/// Keeps a folder, which must exist, to one owner at a time, by a file "lock" in it. The system lets go of it
/// when the process ends, however it ends.
class FolderLock {
 public:
  /// Throws UsageError when another owner has it, Error when it can't be written into.
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  FileDescriptor file_;
};

/// Flushes the entries of a folder to the disk: what makes created, renamed and removed names last.
void flush_folder(const std::filesystem::path& folder);

}  // namespace mixgrad
