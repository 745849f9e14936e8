#pragma once

#include <span>

#include "sim/search/routing.h"
#include "sim/search/search.h"

namespace refit {

/// A named way to plan. One file each. A plan that was simulated already says so in predicted_s.
struct Strategy {
  const char* name;
  const char* summary;
  Plan (*plan)(const Problem& problem, const SearchOptions& options);
};

Plan plan_refit(const Problem& problem, const SearchOptions& options);
Plan plan_direct(const Problem& problem, const SearchOptions& options);
Plan plan_relay(const Problem& problem, const SearchOptions& options);
Plan plan_striped(const Problem& problem, const SearchOptions& options);

/// The routings of `relay` and `direct`, which `refit` tries too.
Routing route_relay(const Problem& problem);
Routing route_direct(const Problem& problem);

std::span<const Strategy> all_strategies();

/// The strategy of that name, or an Error that lists them.
const Strategy& find_strategy(const std::string& name);

}  // namespace refit
