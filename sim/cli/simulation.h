#pragma once

#include <string>

#include "plans/plan_io.h"
#include "sim/cli/commands.h"
#include "sim/search/problem.h"
#include "sim/simulator/simulator.h"

namespace refit::cli {

/// A plan that is about to be replayed or taken apart has to be right first.
LoadedPlan load_checked(const std::string& path);

/// What the options of `simulate` and `explain` ask for, ready to run.
struct Simulation {
  LoadedPlan loaded;
  PlanWorld world;  // changed as asked
  SimulateOptions how;
};
Simulation load_simulation(const SimulatePlanOptions& options);

/// The same for a plan at hand, which has to be right.
Simulation prepare_simulation(LoadedPlan loaded, const SimulatePlanOptions& options);

/// What `refit simulate --json` prints.
std::string simulation_json(const SimulatePlanOptions& options, const Simulation& simulation,
                            const Timeline& timeline);

}  // namespace refit::cli
