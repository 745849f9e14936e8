// direct: every needer gets each atom from one holder, chosen so that the links stay evenly loaded.
// No relays, no stripes: the bytes on the wire are the demand itself. What a careful pull does
// (PEERS.md 3.8, "load-balanced"), over the whole model at once.

#include "sim/search/atoms.h"
#include "sim/search/load.h"
#include "sim/search/parts.h"
#include "sim/search/schedule.h"
#include "sim/search/strategies.h"

namespace refit {

Routing route_direct(const Problem& problem) {
  Routing routing;
  LinkLoad load(problem);
  for_each_atom(
      problem, [&](int32_t tensor, const Atom& atom, const auto& remote, const auto& local) {
        const auto box = static_cast<int32_t>(routing.boxes.size());
        routing.boxes.push_back(atom.box);
        const int64_t bytes = box_bytes(problem, tensor, atom.box);
        const auto& holders = problem.demand.rank_sets[static_cast<size_t>(atom.holders)];
        for (const int32_t rank : local) {
          routing.hops.push_back({.tensor = tensor, .box = box, .from = rank, .to = rank});
        }
        for (const int32_t rank : remote) {
          const int32_t holder = load.best_holder(holders, rank, bytes);
          load.add(holder, rank, bytes);
          routing.hops.push_back({.tensor = tensor, .box = box, .from = holder, .to = rank});
        }
      });
  return routing;
}

Plan plan_direct(const Problem& problem, const SearchOptions& options) {
  return schedule_rounds(problem, route_direct(problem), options);
}

}  // namespace refit
