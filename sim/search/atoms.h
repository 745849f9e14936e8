#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/search/search.h"

namespace refit {

/// Calls visit(tensor, atom, needers without a copy of their own, needers that hold it) for every
/// tensor and atom, tensors in model order.
template <typename Visit>
void for_each_atom(const Problem& problem, Visit visit) {
  const Demand& demand = problem.demand;
  std::vector<int32_t> remote, local;
  for (int32_t tensor = 0; tensor < std::ssize(demand.tensor_overlay); ++tensor) {
    const int32_t overlay = demand.tensor_overlay[static_cast<size_t>(tensor)];
    if (overlay < 0) continue;
    for (const Atom& atom : demand.overlays[static_cast<size_t>(overlay)].atoms) {
      const auto& holders = demand.rank_sets[static_cast<size_t>(atom.holders)];
      remote.clear();
      local.clear();
      for (const int32_t rank : demand.rank_sets[static_cast<size_t>(atom.needers)]) {
        const bool holds = std::binary_search(holders.begin(), holders.end(), rank);
        (holds ? local : remote).push_back(rank);
      }
      visit(tensor, atom, remote, local);
    }
  }
}

}  // namespace refit
