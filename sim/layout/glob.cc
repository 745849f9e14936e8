#include "sim/layout/glob.h"

#include <charconv>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/error.h"

namespace refit {
namespace {

/// A number without leading zeros at the start of `text`, removed from it.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = 0;
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<size_t>(end - text.data());
  if (code != std::errc() || (length > 1 && text[0] == '0')) return std::nullopt;
  text.remove_prefix(length);
  return number;
}

/// "{LO-HI}" at the start of the pattern, removed from it.
std::optional<std::pair<int64_t, int64_t>> take_range(std::string_view& pattern) {
  std::string_view rest = pattern.substr(1);
  const auto lo = take_number(rest);
  if (!lo || !rest.starts_with('-')) return std::nullopt;
  rest.remove_prefix(1);
  const auto hi = take_number(rest);
  if (!hi || *hi < *lo || !rest.starts_with('}')) return std::nullopt;
  pattern = rest.substr(1);
  return std::pair(*lo, *hi);
}

/// Matches up to the next star; false, or `pattern` and `name` are moved past what matched.
bool match_piece(std::string_view& pattern, std::string_view& name) {
  while (!pattern.empty() && pattern[0] != '*') {
    if (pattern[0] == '{') {
      const auto range = take_range(pattern);
      const auto number = take_number(name);
      if (!range || !number || *number < range->first || *number > range->second) return false;
      continue;
    }
    if (name.empty() || (pattern[0] != '?' && pattern[0] != name[0])) return false;
    pattern.remove_prefix(1);
    name.remove_prefix(1);
  }
  return true;
}

}  // namespace

void check_glob(std::string_view pattern, const std::string& place) {
  if (pattern.empty()) fail(place, "an empty name", "a tensor's name or a pattern");
  for (std::string_view rest = pattern; !rest.empty();) {
    if (rest[0] == '{') {
      if (!take_range(rest)) {
        fail(place, quote(pattern), "a range such as {0-15} after every {");
      }
    } else {
      rest.remove_prefix(1);
    }
  }
}

bool match_glob(std::string_view pattern, std::string_view name) {
  // A piece between stars is best matched as early as possible: what follows has most room then.
  // The last piece has to reach the end, so it is tried at every place.
  if (!match_piece(pattern, name)) return false;
  while (!pattern.empty()) {
    while (!pattern.empty() && pattern[0] == '*') pattern.remove_prefix(1);
    if (pattern.empty()) return true;
    const bool last = pattern.find('*') == std::string_view::npos;
    bool found = false;
    for (size_t at = 0; at <= name.size() && !found; ++at) {
      std::string_view p = pattern, n = name.substr(at);
      // A number begins at its first digit.
      if (p[0] == '{' && at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9') continue;
      if (!match_piece(p, n) || (last && !n.empty())) continue;
      pattern = p;
      name = n;
      found = true;
    }
    if (!found) return false;
  }
  return name.empty();
}

}  // namespace refit
