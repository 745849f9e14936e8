#include "sim/layout/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <numeric>

#include "base/error.h"
#include "base/units.h"

namespace refit {

Spec::Spec(std::string_view text, std::span<const std::string_view> known_keys) : text_(text) {
  const std::string_view body = text.substr(spec_kind(text).size() + 1);
  for (const std::string_view entry : split_text(body, ',')) {
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      fail(place(), quote(entry), "key=value");
    }
    const std::string_view key = entry.substr(0, equals), value = entry.substr(equals + 1);
    if (std::find(known_keys.begin(), known_keys.end(), key) == known_keys.end()) {
      fail(place(), "unknown key " + quote(key),
           fmt::format("one of {}", fmt::join(known_keys, ", ")));
    }
    if (find(key) != nullptr) {
      fail(place(key), "a second value " + quote(value), "the key only once");
    }
    entries_.emplace_back(key, value);
  }
}

const std::string* Spec::find(std::string_view key) const {
  for (const auto& [name, value] : entries_) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::optional<int32_t> Spec::size(std::string_view key) const {
  const std::string* value = find(key);
  if (value == nullptr) return std::nullopt;
  return static_cast<int32_t>(parse_int(*value, 1, kMaxRanks, place(key)));
}

int32_t Spec::size(std::string_view key, int32_t fallback) const {
  return size(key).value_or(fallback);
}

bool Spec::is_on(std::string_view key) const {
  const std::string* value = find(key);
  if (value == nullptr || *value == "off") return false;
  if (*value != "on") fail(place(key), quote(*value), "on or off");
  return true;
}

std::string Spec::place() const { return "layout " + quote(text_); }

std::string Spec::place(std::string_view key) const {
  return fmt::format("{}, key {}", place(), key);
}

std::string_view spec_kind(std::string_view text) {
  const std::string_view kind = text.substr(0, std::min(text.find(':'), text.size()));
  const bool is_word = std::all_of(kind.begin(), kind.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  });
  return kind.size() < text.size() && is_word ? kind : std::string_view{};
}

std::vector<int32_t> parse_ranks(std::string_view text, std::optional<int32_t> count,
                                 const std::string& place) {
  std::vector<int32_t> ranks;
  for (const std::string_view part : split_text(text, '|')) {
    const size_t dash = part.find('-', 1);  // from 1: a leading "-" is a bad number, not a range
    const int64_t first = parse_int(part.substr(0, dash), 0, kMaxRanks - 1, place);
    const int64_t last = dash == std::string_view::npos
                             ? first
                             : parse_int(part.substr(dash + 1), 0, kMaxRanks - 1, place);
    if (last < first) fail(place, "range " + quote(part), "a range that ascends");
    for (int64_t rank = first; rank <= last; ++rank) ranks.push_back(static_cast<int32_t>(rank));
    if (ranks.size() > static_cast<size_t>(kMaxRanks)) break;  // holds duplicates
  }
  check_ranks(ranks, count, place);
  return ranks;
}

void check_ranks(std::span<const int32_t> ranks, std::optional<int32_t> count,
                 const std::string& place) {
  std::vector<int32_t> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    fail(place, fmt::format("rank {} more than once", *twice), "every rank once");
  }
  if (count && std::ssize(ranks) != *count) {
    fail(place, fmt::format("{} ranks", ranks.size()), fmt::format("{}, the grid's", *count));
  }
}

std::vector<int32_t> grid_ranks(const Spec& spec, int32_t world, int32_t first_rank) {
  if (const std::string* text = spec.find("ranks")) {
    return parse_ranks(*text, world, spec.place("ranks"));
  }
  std::vector<int32_t> ranks(static_cast<size_t>(world));
  std::iota(ranks.begin(), ranks.end(), first_rank);
  return ranks;
}

}  // namespace refit
