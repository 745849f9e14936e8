#include "base/console.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/error.h"

namespace refit {

namespace {

size_t hanging_indent(std::string_view line) {
  const size_t first = std::min(line.find_first_not_of(' '), line.size());
  const size_t gap = line.find("  ", first);
  const size_t second = gap == line.npos ? gap : line.find_first_not_of(' ', gap);
  return second <= kColumns / 2 ? second : first + 2;
}

}  // namespace

std::string fit_columns(std::string_view text) {
  std::string fitted;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string line(text.substr(0, end));
    const size_t indent = hanging_indent(line);
    if (line.size() > kColumns) line.erase(line.find_last_not_of(' ') + 1);
    while (line.size() > kColumns) {
      size_t at = line.rfind(' ', kColumns);
      if (at == line.npos || at <= indent) at = line.find(' ', kColumns);  // a word too long
      if (at == line.npos) break;
      fitted += line.substr(0, line.find_last_not_of(' ', at) + 1) + '\n';
      line = std::string(indent, ' ') + line.substr(line.find_first_not_of(' ', at));
    }
    fitted += line;
    if (end < text.size()) fitted += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return fitted;
}

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
