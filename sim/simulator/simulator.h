#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plans/plan.h"
#include "sim/cost/cost_model.h"
#include "sim/fabric/fabric.h"

namespace refit {

/// When one transfer ran. Seconds from the barrier.
struct TimelineEntry {
  int32_t from = -1, to = -1, channel = 0, step = 0;
  int64_t bytes = 0;
  double posted = 0;  // both ends had reached it
  double start = 0;   // start-up over, the first byte flows
  double end = 0;
};

/// What a plan does on a fabric.
struct Timeline {
  double refit_s = 0;
  std::vector<double> rank_end;      // by rank: its last byte is in place
  std::vector<double> link_bytes;    // by link of the fabric
  std::vector<double> link_busy_s;   // seconds in which the link carried something
  int32_t bottleneck = -1;           // link of the highest utilisation: link_bytes / rate
  double bottleneck_use = 0;         // its bytes / (rate x refit_s)
  // Split of the refit time of the last rank: bytes flowing, packing and copies, start-ups, waiting for others.
  double wire_s = 0, staging_s = 0, launch_s = 0, wait_s = 0;
  std::vector<TimelineEntry> entries;  // only when asked for; ordered by (start, from, to)
  int64_t events = 0;
};

struct SimulateOptions {
  bool entries = false;
};

/// Replays the programs on the fabric: DESIGN.md section 5. Deterministic: same input, same result bits. Fails when a rank has no GPU of
/// the fabric or no path; the plan has to pass `check` (a plan that would hang ends in an Error that names a stuck step).
Timeline simulate(const Plan& plan, const Fabric& fabric, const CostModel& cost, const SimulateOptions& options = {});

/// Chrome / Perfetto trace of the entries: one row per rank and lane.
void write_trace(const Plan& plan, const Timeline& timeline, const std::string& path);

}  // namespace refit
