#pragma once

#include <string>
#include <string_view>

namespace refit {

// Patterns of tensor names: "*" is any text, "?" any character, "{3-17}" any whole number from 3 to
// 17 (layers of a pipeline stage); all else stands for itself.

/// Fails with `place` when the pattern is empty or a "{" does not begin a range.
void check_glob(std::string_view pattern, const std::string& place);

/// Does the whole name match? The pattern has passed check_glob. O(pattern x name).
bool match_glob(std::string_view pattern, std::string_view name);

}  // namespace refit
