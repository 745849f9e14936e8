#pragma once

#include <cstdint>
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

/// What NCCL does with messages of one class; the rules are in nccl.h.
struct ChannelCost {
  int32_t channels = 0;  // that a pair of ranks could use
  double rate = 0;       // of one channel, bytes/s
  int64_t chunk = 0;     // bytes
  int32_t fills = 0;     // chunk times until the first bytes have gone through all buffers
};

struct NcclCost {
  int32_t channels = 0;   // of a communicator, in all; 0: messages are not cut into channels
  int32_t max_peers = 0;  // that the communicator is told to expect over the network; 0: all ranks
  bool pxn = false;  // a message to another rail leaves by the GPU of its node that owns that rail
  ChannelCost nvlink, net;
};

/// What the host of a peer's framework takes. Only the peers' schedules (search/baselines.h) have
/// such work.
struct HostCost {
  double parameter = 0;  // seconds to handle one checkpoint parameter: views, hooks, loaders
  double call = 0;       // seconds to set up and end one reshard call of a library
};

/// Named set of constants; each has its source in the file. SI.
struct CostModel {
  std::string name;
  LinkCost nvlink, net;
  double gpu_rate = 0;  // bytes/s that one GPU's SMs or copy engines move, per direction; 0: no cap
  double memory_rate = 0;  // bytes/s of device memory for packing, unpacking and local copies (read
                           // + write counted once); 0: free
  double copy_start = 0;   // seconds to launch a pack, unpack or copy
  NcclCost nccl;
  HostCost host;  // optional in the file: nothing
};

/// Text of a cost model file: the fields of CostModel by name, all of them, with units; "none" for
/// a rate that nothing limits. `nccl` alone may be left out: messages then move as they are. In it,
/// `max_peers` is a number or "all".
struct CostSource {
  std::string text;  // YAML
  std::string name;  // for messages
};

/// A name of topologies/cost/ or a path.
CostSource load_cost_source(const std::string& name_or_path);

CostModel parse_cost(const CostSource& source);

/// Where the constants of a written file come from: a line each, without "#"; `head` may have more.
struct CostNotes {
  std::string head, nvlink_rate, nvlink_start, net_rate, net_start, rest;
};

/// The text of a file that parse_cost reads back to the last of six digits.
std::string print_cost(const CostModel& cost, const CostNotes& notes);

/// NICs, the spine and PCIe are the net.
const LinkCost& link_cost(const CostModel& cost, LinkKind kind);

/// Achievable rate of every link of the fabric, bytes/s. Bound and simulation use these.
std::vector<double> link_rates(const Fabric& fabric, const CostModel& cost);

}  // namespace refit
