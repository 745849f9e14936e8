#include "sim/search/spread.h"

#include <algorithm>

#include "plans/plan.h"

namespace refit {

std::vector<SpreadHop> spread_inside(const std::vector<int32_t>& needers, int32_t entry) {
  std::vector<SpreadHop> hops;
  const auto at = std::ranges::find(needers, entry);
  const auto ranks = std::ssize(needers);
  if (at == needers.end() || ranks - 1 <= kMaxPeersPerStep) {
    for (const int32_t needer : needers)
      if (needer != entry) hops.push_back({entry, needer, -1});
    return hops;
  }
  const int64_t rows = (ranks + kMaxPeersPerStep - 1) / kMaxPeersPerStep;
  const auto begin = [&](int64_t row) { return ranks * row / rows; };
  const int64_t place = at - needers.begin();
  int64_t own = 0;
  while (begin(own + 1) <= place) ++own;
  const int64_t column = place - begin(own);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t size = begin(row + 1) - begin(row);
    const int32_t first = needers[static_cast<size_t>(begin(row) + column % size)];
    int32_t parent = -1;
    if (row != own) {
      parent = static_cast<int32_t>(hops.size());
      hops.push_back({entry, first, -1});
    }
    for (int64_t i = 0; i < size; ++i) {
      const int32_t needer = needers[static_cast<size_t>(begin(row) + i)];
      if (needer != first) hops.push_back({first, needer, parent});
    }
  }
  return hops;
}

}  // namespace refit
