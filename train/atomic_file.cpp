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
  int reason = write_flushed(temporary, bytes);
  if (reason == 0 && std::rename(temporary.c_str(), target.c_str()) != 0) reason = errno;
  if (reason == 0) return;
  ::unlink(temporary.c_str());
  throw Error(str("[file] can't write ", target, ": ", errno_text(reason)));
}

FileDescriptor::~FileDescriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool write_fully(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

std::string errno_text(int error) { return std::generic_category().message(error); }

}  // namespace mixgrad
