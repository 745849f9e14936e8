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

void check_failed(const char* condition, const char* file, int line) {
  fmt::print(stderr, "{}:{}: broken invariant: {}\n", file, line, condition);
  std::abort();
}

}  // namespace refit
