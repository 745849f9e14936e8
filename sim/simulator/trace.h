#pragma once

#include <string>

#include "plans/plan.h"
#include "sim/fabric/fabric.h"
#include "sim/simulator/replay.h"

namespace refit {

/// Chrome / Perfetto trace of a replay: a process per rank, a row per channel (more where transfers
/// of a channel overlap: row channel + kMaxChannels x n), and every transfer at both of its ranks;
/// after them a process "links", a row per link that carried something, the fullest first, with the
/// times in which it did and the part of its capacity in use then.
void write_trace(const Plan& plan, const Fabric& fabric, const CostModel& cost,
                 const Replay& replay, const std::string& path);

}  // namespace refit
