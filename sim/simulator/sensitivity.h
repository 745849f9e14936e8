#pragma once

#include <string>
#include <vector>

#include "sim/simulator/simulator.h"

namespace refit {

/// What a change of the fabric or the cost model would do to a fixed plan.
struct Sensitivity {
  std::string change;  // "NICs twice as fast"
  double refit_s = 0;
};

/// Simulates the plan again, each time with one change: NICs, NVLink, spine, or memory twice as
/// fast (with what goes with them: caps of a connection, rates of channels), no start-ups, messages
/// not cut into channels; largest gain first. Changes of what the fabric or the cost model does not
/// have are left out. The schedule stays: a new search might gain more. Runs on as many threads as
/// there are cores.
std::vector<Sensitivity> sensitivities(const Plan& plan, const Fabric& fabric,
                                       const CostModel& cost, const SimulateOptions& options = {});

}  // namespace refit
