#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/layout/layout.h"
#include "tests/random.h"

namespace refit::testing {

/// Tensor t has map t.
inline Layout layout_of(std::vector<RankMap> maps, std::vector<int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  Layout layout;
  layout.spec = "random";
  layout.ranks = std::move(ranks);
  for (int32_t t = 0; t < std::ssize(maps); ++t) layout.tensor_map.push_back(t);
  layout.maps = std::move(maps);
  return layout;
}

}  // namespace refit::testing
