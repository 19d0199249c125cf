#include "tensor/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "tensor/error.h"

namespace mixgrad {

FileDescriptor::~FileDescriptor() { close(); }

bool FileDescriptor::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  return descriptor < 0 || ::close(descriptor) == 0;
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

FileReader::FileReader(const std::filesystem::path& path)
    : path_(path.string()), file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat status {};
  if (file_.get() < 0 || ::fstat(file_.get(), &status) != 0) fail(errno_text(errno));
  if (!S_ISREG(status.st_mode)) fail("not a regular file");
  bytes_ = status.st_size;
}

void FileReader::read(void* data, int64_t bytes) {
  auto* out = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::read(file_.get(), out, static_cast<size_t>(bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(errno_text(errno));
    if (got == 0) fail(str("it ended ", bytes, " bytes early"));
    out += got;
    bytes -= got;
  }
}

void FileReader::fail(const std::string& reason) const {
  throw Error(str("[file] can't read ", path_, ": ", reason));
}

FileWriter::FileWriter(const std::filesystem::path& path)
    : path_(path.string()), file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  require(file_.get() >= 0);
}

void FileWriter::write(const void* data, int64_t bytes) {
  require(write_fully(file_.get(), {static_cast<const char*>(data), static_cast<size_t>(bytes)}));
}

void FileWriter::finish() {
  require(::fsync(file_.get()) == 0);
  require(file_.close());
}

void FileWriter::require(bool ok) const {
  if (!ok) throw Error(str("[file] can't write ", path_, ": ", errno_text(errno)));
}

FolderLock::FolderLock(const std::filesystem::path& folder)
    : file_(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  check(file_.get() >= 0, "[files] can't write into '", folder.string(), "': ", errno_text(errno));
  check_usage(::flock(file_.get(), LOCK_EX | LOCK_NB) == 0, "[files] '", folder.string(),
              "' is in use by another process");
}

void flush_folder(const std::filesystem::path& folder) {
  const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const bool flushed = file.get() >= 0 && ::fsync(file.get()) == 0;
  check(flushed, "[file] can't flush the folder ", folder.string(), ": ", errno_text(errno));
}

}  // namespace mixgrad
