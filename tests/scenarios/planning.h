#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/search/search.h"
#include "tests/scenarios/scenario.h"

namespace refit::scenarios {

/// The scenario as a problem, its layouts read from layout files. `dtype` replaces the tensors' own
/// where not empty. Ranks stand on the scenario's hosts where it has some, else four to a host, and
/// are as many as `exec.world` says.
Problem make_problem(const Scenario& scenario, const std::string& dtype = "");

/// Plans it; the staging bound is the scenario's, for elements of `scale` times their own size.
Plan plan_scenario(const Scenario& scenario, const Problem& problem, const std::string& strategy,
                   double scale = 1);

/// Bytes by (from, to), local copies included; what a rank copies from one gen shard to another (an
/// expert that it has twice) counts for who sent it, as in the demand. Bytes that arrive in gen
/// shards by rank.
struct Traffic {
  std::map<std::pair<int32_t, int32_t>, int64_t> pairs;
  std::map<int32_t, int64_t> received;
  std::map<std::pair<int32_t, int32_t>, int64_t> descriptors;  // pieces
  int64_t rounds = 0;         // with one peer at a time: the most peers of every step
  int64_t most_sources = 0;   // of one step of a rank
  int64_t between_hosts = 0;  // bytes
};
Traffic count_traffic(const Plan& plan);

}  // namespace refit::scenarios
