#include "base/console.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/error.h"

namespace refit {

void log_line(std::string_view text) {
  std::string line = isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "";
  line += text;
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void finish_output() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    const std::string reason = errno != 0 ? std::strerror(errno) : "output was lost";
    throw Error("stdout: cannot be written: " + reason, ErrorKind::kWork);
  }
}

}  // namespace refit
