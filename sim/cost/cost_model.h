#pragma once

#include <string>
#include <vector>

#include "sim/fabric/fabric.h"

namespace refit {

/// Of one class of links: what part of the nominal rate is achievable, and what starting costs.
struct LinkCost {
  double efficiency = 1;     // achievable / nominal rate
  double flow_rate = 0;      // cap of a single flow (one connection), bytes/s; 0: none
  double step_start = 0;     // seconds before the first byte of a step on a lane of this class
  double message_start = 0;  // seconds per message, on the lane
};

/// Named set of constants; each has its source in the file. SI.
struct CostModel {
  std::string name;
  LinkCost nvlink, net;
  double gpu_rate = 0;  // bytes/s that one GPU's SMs or copy engines move, per direction; 0: no cap
  double memory_rate = 0;  // bytes/s of device memory for packing, unpacking and local copies (read
                           // + write counted once); 0: free
  double copy_start = 0;   // seconds to launch a pack, unpack or copy
};

/// Text of a cost model file: the fields of CostModel by name, all of them, with units; "none" for
/// a rate that nothing limits.
struct CostSource {
  std::string text;  // YAML
  std::string name;  // for messages
};

/// A name of topologies/cost/ or a path.
CostSource load_cost_source(const std::string& name_or_path);

CostModel parse_cost(const CostSource& source);

/// NICs and the spine are the net.
const LinkCost& link_cost(const CostModel& cost, LinkKind kind);

/// Achievable rate of every link of the fabric, bytes/s. Bound and simulation use these.
std::vector<double> link_rates(const Fabric& fabric, const CostModel& cost);

}  // namespace refit
