#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"

namespace refit {

/// Most ranks of one side, and the highest rank number + 1.
inline constexpr int32_t kMaxRanks = 1 << 16;

/// An inline layout, "kind:key=value,key=value", read strictly: an entry without "=", a key that is
/// not known and a key given twice are errors. Every message names the whole text and the key.
class Spec {
 public:
  Spec(std::string_view text, std::span<const std::string_view> known_keys);

  /// The value as written, or null.
  const std::string* find(std::string_view key) const;

  /// An integer in [1, kMaxRanks]; the first form gives `fallback` where the key is absent.
  int32_t size(std::string_view key, int32_t fallback) const;
  std::optional<int32_t> size(std::string_view key) const;

  /// on or off; false where the key is absent.
  bool is_on(std::string_view key) const;

  /// `layout "megatron:tp=x"`, with `, key tp` where a key is given: for messages.
  std::string place() const;
  std::string place(std::string_view key) const;

 private:
  std::string text_;
  std::vector<std::pair<std::string, std::string>> entries_;
};

/// The part before the first ":", when all of it is letters, digits or "_"; else "".
std::string_view spec_kind(std::string_view text);

/// "0-7|16-23" or "0|2|4": rank numbers in the given order, as check_ranks wants them.
std::vector<int32_t> parse_ranks(std::string_view text, std::optional<int32_t> count,
                                 const std::string& place);

/// Refuses duplicates, and another number of ranks than `count`.
void check_ranks(std::span<const int32_t> ranks, std::optional<int32_t> count,
                 const std::string& place);

/// The ranks of a grid of `world`: what key `ranks` says, else first_rank, first_rank + 1, ...
std::vector<int32_t> grid_ranks(const Spec& spec, int32_t world, int32_t first_rank);

}  // namespace refit
