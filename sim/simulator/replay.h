#pragma once

#include <cstdint>
#include <vector>

#include "sim/simulator/maxmin.h"
#include "sim/simulator/simulator.h"
#include "sim/simulator/step_graph.h"

namespace refit {

// A simulation with all that happened in it, for those who ask why: the rules are those of
// simulator.h, in whose notation b, y, p, e are given below.

inline constexpr double kNever = MaxMin::kInfinity;

/// When the parts of a step were over, in seconds; kNever for what it does not have.
struct NodeTimes {
  double begin = kNever;     // b
  double packed = kNever;    // p, with something to pack
  double copied = kNever;    // its messages to itself
  double arrived = kNever;   // all receives, with something to unpack
  double unpacked = kNever;  // the same, in place
  double end = kNever;       // e
};

struct TransferTimes {
  double ready = kNever;  // both ends are: max of y
  double start = kNever;  // the first byte flows
  double end = kNever;    // the last has arrived
  // The resource at whose fair share it ran for longest, or MaxMin::kOwnCap; only when recorded.
  int32_t holder = MaxMin::kOwnCap;
};

struct Replay {
  StepGraph graph;
  std::vector<NodeTimes> nodes;          // by node of the graph
  std::vector<TransferTimes> transfers;  // by transfer of the graph
  std::vector<double> link_bytes;        // by link of the fabric
  std::vector<double> link_busy_s;       // the same: seconds in which it carried something
  int64_t events = 0;
};

/// As `simulate`, which sums this up; `holders`: record them.
Replay replay(const Plan& plan, const Fabric& fabric, const CostModel& cost,
              const SimulateOptions& options = {}, bool holders = false);

/// The figures of a replay.
Timeline make_timeline(const Plan& plan, const Replay& replay, const CostModel& cost,
                       bool entries = false);

/// The step of a node in its rank's program.
const Step& step_of(const Plan& plan, const StepNode& node);

/// When the step's start-up and packing are over (y); the step has begun.
double ready_time(const Replay& replay, int32_t node);

}  // namespace refit
