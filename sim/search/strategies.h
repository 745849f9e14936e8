#pragma once

#include <span>

#include "sim/search/routing.h"
#include "sim/search/search.h"

namespace refit {

/// A named way to plan. One file each. A plan that was simulated already says so in predicted_s.
struct Strategy {
  const char* name;
  const char* summary;
  const char* option;  // "key=default|other"; "": none
  bool baseline;       // the schedule of a peer (baselines.h)
  Plan (*plan)(const Problem& problem, const SearchOptions& options);
};

Plan plan_refit(const Problem& problem, const SearchOptions& options);
Plan plan_direct(const Problem& problem, const SearchOptions& options);
Plan plan_relay(const Problem& problem, const SearchOptions& options);

/// The routings of `relay` and `direct`, which `refit` tries too.
Routing route_relay(const Problem& problem);
Routing route_direct(const Problem& problem);

std::span<const Strategy> all_strategies();

/// The strategy of NAME[+misc][:key=value,...], or an Error that lists what there is.
const Strategy& find_strategy(const std::string& text);

}  // namespace refit
