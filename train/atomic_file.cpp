// Writing a whole file through a temporary name: POSIX calls, since streams lose the reason of a failure.
#include "train/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include "tensor/error.h"

namespace mixgrad {
namespace {

// Creates or empties the file at path and puts bytes, flushed to the disk, into it. Returns 0 or the errno of
// a failure.
int write_flushed(const std::string& path, std::string_view bytes) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  const bool written = file.get() >= 0 && write_fully(file.get(), bytes) && ::fsync(file.get()) == 0;
  return written ? 0 : errno;
}

}  // namespace

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  const std::string target = path.string(), temporary = target + ".tmp";
  std::error_code unknown;
  const std::filesystem::file_status there = std::filesystem::symlink_status(path, unknown);
  // A rename would put a file in the place of a device, or of a link to one.
  check(!std::filesystem::exists(there) || std::filesystem::is_regular_file(there), "[file] can't write ",
        target, ": it is no regular file");
  int reason = write_flushed(temporary, bytes);
  if (reason == 0 && std::rename(temporary.c_str(), target.c_str()) != 0) reason = errno;
  if (reason == 0) return;
  ::unlink(temporary.c_str());
  throw Error(str("[file] can't write ", target, ": ", errno_text(reason)));
}

}  // namespace mixgrad
