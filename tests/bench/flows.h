#pragma once

#include <cstdint>
#include <ctime>
#include <vector>

#include "sim/fabric/fabric.h"

namespace refit {

struct Flow {
  int32_t from = -1, to = -1;  // GPUs
  int64_t bytes = 0;
};

/// Flows that each GPU sends in the order of the list, at most `window` at a time; 0: all at once.
struct Traffic {
  Fabric fabric;
  std::vector<Flow> flows;
  int32_t window = 0;
};

/// Of this process: what others do on the machine does not count.
inline double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Measured {
  double seconds = 0;   // of computing, CPU
  double makespan = 0;  // simulated seconds
};

/// In this process, which can do so once. Only where SimGrid is found (REFIT_SIMGRID).
Measured run_simgrid(const Traffic& traffic);

}  // namespace refit
