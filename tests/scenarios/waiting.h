#pragma once

#include <string>
#include <vector>

#include "tests/scenarios/scenario.h"

namespace refit::scenarios {

/// Something in a scenario that the tests do not exercise yet, and why.
struct Waiting {
  std::string feature;  // "exec.hooks", "faults.kill", "expect.min_buckets", "verify.block", ...
  std::string reason;
};

/// All of a scenario that waits. Fails with the scenario and the feature when there is one that
/// neither the tests exercise nor the table of reasons has: a new kind of scenario has to be
/// classified before it passes.
std::vector<Waiting> waiting_for(const Scenario& scenario);

/// Must the planner refuse it (and not only a rank that a fault hits)?
bool must_be_refused(const Scenario& scenario);

}  // namespace refit::scenarios
