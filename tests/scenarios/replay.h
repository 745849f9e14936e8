#pragma once

#include <string>
#include <vector>

#include "plans/plan.h"
#include "tests/scenarios/scenario.h"

namespace refit::scenarios {

/// Replays all rounds of the scenario on the host backend, with the elements' numbers as values, and
/// compares every cell of every buffer, and the oracle's checksums. Returns what is wrong, at most
/// one line per rank.
std::vector<std::string> replay(const Scenario& scenario, const Plan& plan);

}  // namespace refit::scenarios
