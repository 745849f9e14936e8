#include "base/error.h"

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>

namespace refit {

void fail(std::string_view place, std::string_view found, std::string_view expected) {
  throw Error(fmt::format("{}: found {}, expected {}", place, found, expected));
}

void fail(std::string_view place, std::string_view what) {
  throw Error(fmt::format("{}: {}", place, what));
}

std::string quote(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string out = "\"";
  for (char c : text.substr(0, kLongest)) out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  out += text.size() > kLongest ? "...\"" : "\"";
  return out;
}

void check_failed(const char* condition, const char* file, int line) {
  fmt::print(stderr, "{}:{}: broken invariant: {}\n", file, line, condition);
  std::abort();
}

}  // namespace refit
