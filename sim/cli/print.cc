#include "sim/cli/print.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "base/console.h"

namespace refit::cli {

void print_table(const std::vector<std::string>& header,
                 const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> width(header.size());
  for (size_t c = 0; c < header.size(); ++c) {
    width[c] = header[c].size();
    for (const auto& row : rows) {
      if (c == 0 || row.size() == header.size()) width[c] = std::max(width[c], row[c].size());
    }
  }
  size_t columns = 2 * width.size();
  for (const size_t w : width) columns += w;
  const size_t apart = columns > kColumns ? 1 : 2;
  const auto print_row = [&](const std::vector<std::string>& row) {
    std::string line = fmt::format("  {:<{}}", row[0], width[0]);
    for (size_t c = 1; c < row.size(); ++c) {
      line += fmt::format("{:{}}{:>{}}", "", apart, row[c], width[c]);
    }
    fmt::print("{}\n", line);
  };
  print_row(header);
  for (const auto& row : rows) {
    if (row.size() == header.size()) {
      print_row(row);
    } else {
      print_text(fmt::format("  {:<{}}  {}\n", row[0], width[0], row[1]));
    }
  }
}

void print_text(const std::string& text) { fmt::print("{}", fit_columns(text)); }

std::string print_ratio(double ratio) { return fmt::format("{:.3f}", ratio); }

std::string print_percent(double part) { return fmt::format("{:.1f} %", part * 100); }

void print_binding(const std::vector<PriceGroup>& binding) {
  const char* title = "binding";
  for (const PriceGroup& group : binding) {
    fmt::print("{:<12} {} {}, {} link{}\n", std::exchange(title, ""), print_percent(group.share),
               group.name, group.links, group.links == 1 ? "" : "s");
  }
}

Progress make_progress(bool quiet) {
  if (quiet || isatty(STDERR_FILENO) == 0) return {};
  return [](const std::string& phase, double part) {
    constexpr int kWidth = 24;
    const int filled = static_cast<int>(std::lround(part * kWidth));
    if (part >= 1) {
      fmt::print(stderr, "\r\033[K");
    } else {
      fmt::print(stderr, "\r[{:#<{}}{:.<{}}] {}\033[K", "", filled, "", kWidth - filled, phase);
    }
    std::fflush(stderr);
  };
}

void log_notes(bool quiet, const std::vector<std::string>& notes) {
  if (quiet) return;
  for (const std::string& note : notes) log_line("note: " + note);
}

int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = folder + "/" + name;
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

}  // namespace refit::cli
