#include "base/file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/error.h"

namespace refit {
namespace {

namespace fs = std::filesystem;

/// An open file descriptor, closed at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

bool is_file(const fs::path& path) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  return !code && fs::exists(status) && !fs::is_directory(status);
}

fs::path data_directory() {
  if (const char* set = std::getenv("REFIT_DATA"); set != nullptr && *set != '\0') return set;
  std::error_code code;
  // The Python package keeps its data next to the library that holds this function.
  Dl_info here{};
  if (::dladdr(reinterpret_cast<const void*>(&data_directory), &here) != 0) {
    const fs::path packaged = fs::path(here.dli_fname).parent_path() / "data";
    if (fs::is_directory(packaged / "topologies", code)) return packaged;
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", code);
  if (!code) {
    const fs::path installed = program.parent_path().parent_path() / "share" / "refit";
    if (fs::is_directory(installed, code)) return installed;
  }
  return REFIT_SOURCE_DIR;
}

}  // namespace

std::string read_file(const std::string& path) {
  const auto refuse = [&path](int code) {
    fail(path, fmt::format("cannot be read: {}", std::strerror(code)));
  };
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) refuse(errno);
  std::string content;
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) refuse(errno);
  const size_t expected = S_ISREG(info.st_mode) ? static_cast<size_t>(info.st_size) : 0;
  size_t filled = 0;
  for (;;) {
    // One byte more than expected, so that a regular file ends with one read of nothing and no
    // second buffer.
    if (filled == content.size()) content.resize(std::max(expected + 1, 2 * filled + 4096));
    const ssize_t n = ::read(file.get(), content.data() + filled, content.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse(errno);
    if (n == 0) break;
    filled += static_cast<size_t>(n);
  }
  content.resize(filled);
  return content;
}

void write_stream(const std::string& path, const std::function<void(std::ostream&)>& write) {
  // A pipe or a device (-o /dev/stdout) is written in place: a rename would replace it.
  struct stat info {};
  const bool in_place = ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  const std::string target = in_place ? path : fmt::format("{}.tmp{}", path, ::getpid());
  const auto refuse = [&](int code) {
    if (!in_place) ::unlink(target.c_str());
    throw Error(fmt::format("{}: cannot be written: {}", path, std::strerror(code)),
                ErrorKind::kWork);
  };
  errno = 0;
  std::ofstream out(target, std::ios::binary);
  if (!out) refuse(errno);
  try {
    write(out);
  } catch (...) {
    if (!in_place) ::unlink(target.c_str());
    throw;
  }
  out.close();
  if (!out) refuse(errno != 0 ? errno : EIO);
  if (in_place) return;
  const Descriptor file(::open(target.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok() || ::fsync(file.get()) != 0 || ::rename(target.c_str(), path.c_str()) != 0)
    refuse(errno);
}

void write_file(const std::string& path, std::string_view content) {
  write_stream(path, [content](std::ostream& out) {
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
  });
}

std::string find_data_file(std::string_view folder, std::string_view name) {
  if (name.empty()) return "";
  if (name.find('/') == std::string_view::npos) {
    const fs::path path = data_directory() / folder / (std::string(name) + ".yaml");
    if (is_file(path)) return path.string();
  }
  return is_file(fs::path(name)) ? std::string(name) : "";
}

std::string list_data_files(std::string_view folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator it(data_directory() / folder, code), end; !code && it != end;
       it.increment(code)) {
    if (it->path().extension() == ".yaml" && is_file(it->path())) {
      names.push_back(it->path().stem().string());
    }
  }
  std::ranges::sort(names);
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

}  // namespace refit
