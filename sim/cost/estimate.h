#pragma once

#include "plans/plan.h"
#include "sim/cost/cost_model.h"
#include "sim/fabric/fabric.h"

namespace refit {

/// Closed-form opinion on a plan's time, made without the simulator and without its order: the
/// larger of
///   the fullest link    max over links of bytes / rate, and
///   the busiest rank    max over ranks and channels of the sum over its steps of start-ups and
///   bytes / rate of the slower direction,
/// in seconds. Waiting for others is not in it, so that the distance to the simulated time shows
/// what order and rendezvous cost.
double estimate(const Plan& plan, const Fabric& fabric, const CostModel& cost);

}  // namespace refit
