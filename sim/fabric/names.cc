#include "sim/fabric/names.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/units.h"

namespace refit {
namespace {

constexpr size_t kMostNames = size_t{1} << 20;
constexpr size_t kMostDigits = 9;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Cuts at commas outside brackets.
std::vector<std::string_view> split_list(std::string_view list, std::string_view place) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  bool inside = false;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (i < list.size() && c == '[') {
      if (inside) fail(place, quote(list), "brackets that do not nest");
      inside = true;
    } else if (c == ']') {
      if (!inside) fail(place, quote(list), "'[' before ']'");
      inside = false;
    } else if (c == ',' && (!inside || i == list.size())) {
      if (inside) fail(place, quote(list), "']' after '['");
      if (i > start) parts.push_back(list.substr(start, i - start));
      start = i + 1;
    }
  }
  return parts;
}

int64_t read_number(std::string_view digits, std::string_view place) {
  if (digits.empty() || digits.size() > kMostDigits || !std::ranges::all_of(digits, is_digit))
    fail(place, quote(digits), "a number of at most 9 digits");
  return parse_int(digits.substr(std::min(digits.find_first_not_of('0'), digits.size() - 1)), 0,
                   999'999'999, place);
}

void expand_one(std::string_view text, std::string_view place, std::vector<std::string>& out) {
  const size_t open = text.find('[');
  if (open == std::string_view::npos) {
    if (out.size() >= kMostNames) fail(place, "more than 2^20 names", "fewer");
    out.emplace_back(text);
    return;
  }
  const size_t close = text.find(']', open);
  const std::string_view head = text.substr(0, open), tail = text.substr(close + 1);
  std::string_view ranges = text.substr(open + 1, close - open - 1);
  for (;;) {
    const size_t comma = ranges.find(',');
    const std::string_view range = ranges.substr(0, comma);
    const size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const int64_t first = read_number(low, place);
    const int64_t last =
        dash == std::string_view::npos ? first : read_number(range.substr(dash + 1), place);
    if (last < first) fail(place, quote(range), "a range that rises");
    if (last - first >= static_cast<int64_t>(kMostNames)) fail(place, quote(range), "fewer names");
    for (int64_t number = first; number <= last; ++number)
      expand_one(fmt::format("{}{:0{}}{}", head, number, low.size(), tail), place, out);
    if (comma == std::string_view::npos) return;
    ranges.remove_prefix(comma + 1);
  }
}

/// A name around one of its numbers: "node-07.x" is "node-", 7 of width 2, ".x".
struct Numbered {
  std::string_view head, digits, tail;

  std::string with(int64_t number) const {
    return fmt::format("{}{:0{}}{}", head, number, digits.size(), tail);
  }
};

/// The name around the number in which the next one differs first.
std::optional<Numbered> split_number(std::string_view name, std::string_view next) {
  size_t begin = 0;
  while (begin < name.size() && begin < next.size() && name[begin] == next[begin]) ++begin;
  if (begin == name.size()) return std::nullopt;
  size_t end = begin;
  while (end < name.size() && is_digit(name[end])) ++end;
  while (begin > 0 && is_digit(name[begin - 1])) --begin;
  if (begin == end || end - begin > kMostDigits) return std::nullopt;
  return Numbered{name.substr(0, begin), name.substr(begin, end - begin), name.substr(end)};
}

}  // namespace

std::vector<std::string> expand_names(std::string_view list, std::string_view place) {
  std::vector<std::string> names;
  for (const std::string_view part : split_list(list, place)) expand_one(part, place, names);
  if (names.empty()) fail(place, quote(list), "a list of names");
  return names;
}

std::string fold_names(const std::vector<std::string>& names) {
  std::string list;
  for (size_t i = 0; i < names.size();) {
    size_t end = i + 1;
    std::optional<Numbered> first;
    int64_t number = 0;
    if (end < names.size()) first = split_number(names[i], names[end]);
    if (first) {
      number = std::stoll(std::string(first->digits));
      while (end < names.size() &&
             names[end] == first->with(number + static_cast<int64_t>(end - i)))
        ++end;
    }
    if (!list.empty()) list += ',';
    if (end - i == 1)
      list += names[i];
    else
      list += fmt::format("{}[{}-{:0{}}]{}", first->head, first->digits,
                          number + static_cast<int64_t>(end - i) - 1, first->digits.size(),
                          first->tail);
    i = end;
  }
  return list;
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

bool matches_name(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (size_t i = star; i <= name.size(); ++i)
    if (matches_name(rest, name.substr(i))) return true;
  return false;
}

}  // namespace refit
