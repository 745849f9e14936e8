#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/fabric/fabric.h"

namespace refit {

/// A port: its rate in one direction and the latency of its link.
struct Port {
  double rate = 0;  // bytes/s; 0: not known yet (while importing)
  double latency = 0;
  bool operator==(const Port&) const = default;
};

/// A NIC port of a node.
struct NicPort {
  std::string name;  // "nic0", "mlx5_0"
  double rate = 0;   // 0: not known yet (while importing)
  int32_t rail = 0;
  std::vector<int32_t> gpus;  // whose own it is, by number in the node
  bool operator==(const NicPort&) const = default;
};

/// NVLinks from one GPU of a node straight to another, both ways.
struct Bridge {
  int32_t first = 0, second = 0;
  double rate = 0;
  bool operator==(const Bridge&) const = default;
};

/// A PCIe switch or NUMA node. `up` leads to the parent, or to the host that joins those without.
struct PcieHub {
  std::string name;
  int32_t parent = -1;  // position in the list, before this one
  double up = 0;        // 0: nothing above
  std::vector<int32_t> gpus = {}, nics = {};
  bool operator==(const PcieHub&) const = default;
};

/// What a node is made of.
struct NodeKind {
  std::string name;
  int32_t gpus = 0;
  bool nvswitch = false;  // `nvlink` is the port of a GPU to it
  Port nvlink;            // with bridges only its latency counts
  std::vector<int32_t> nvlink_off;
  std::vector<Bridge> bridges;
  std::vector<NicPort> nics;
  double nic_latency = 0;
  std::vector<PcieHub> pcie;
  Port pcie_port;  // of a GPU
  bool operator==(const NodeKind&) const = default;
};

struct HostEntry {
  std::string name;
  int32_t kind = 0;
  std::string domain = {};           // NVLink domain it belongs to; "": its own
  std::vector<int32_t> leaves = {};  // switch of every NIC, -1: not plugged in; with switches only
  bool operator==(const HostEntry&) const = default;
};

/// A switch of an explicit network. Parallel switches of a tier are one, their cables added up.
struct SwitchEntry {
  std::string name;
  int32_t parent = -1;  // position in the list, before this one
  Port up = {};         // to the parent; rate 0: never binds
  bool operator==(const SwitchEntry&) const = default;
};

/// What differs from the rest: links by name.
struct LinkChange {
  std::string links;  // pattern list: "n[2-3].nic*", "*.nic5.out"
  double rate = 0;    // 0: unchanged
  double factor = 1;
  double latency = -1;  // -1: unchanged
  bool operator==(const LinkChange&) const = default;
};

enum class NetworkKind : uint8_t { kRailOptimized, kRailOnly, kFlat, kSwitches };

/// A fabric file, read: what `FabricSource` says. The keys are described in docs/fabrics.md.
struct FabricFile {
  std::string name, default_cost;
  std::vector<NodeKind> kinds;
  int32_t nodes = 0;             // generated nodes; 0: as many as needed
  std::vector<HostEntry> hosts;  // named nodes, instead of generated ones
  int32_t domain_nodes = 1;      // generated nodes that one NVLink domain spans
  NetworkKind network = NetworkKind::kFlat;
  double oversubscription = 1;
  double spine_latency = 0;
  std::vector<SwitchEntry> switches;
  std::vector<LinkChange> changes;
  bool operator==(const FabricFile&) const = default;
};

/// Reads and checks a fabric file; errors name file, line and key.
FabricFile parse_fabric_file(const FabricSource& source);

/// The text that reads back as the same file.
std::string print_fabric_file(const FabricFile& file);

/// Changes by parameter, "nodes=4,gpus=4,segment=16,nic=200Gbps,oversubscription=2": nodes of the
/// cluster, GPUs used of each node (with the NICs that are theirs), nodes an NVLink domain spans,
/// rate of every NIC, rate of a leaf's NICs over that of its way up; "n[2-3].nic*=200Gbps": rate of
/// the links so named (LinkChange). `place` names the fabric.
void set_parameters(FabricFile& file, const std::string& parameters, const std::string& place);

/// The NICs of n GPUs dealt evenly: NIC i to GPU floor(i gpus / nics), or with fewer NICs than GPUs
/// NIC i to the GPUs g with floor(g nics / gpus) = i.
std::vector<std::vector<int32_t>> deal_nics(int32_t nics, int32_t gpus);

/// Builds the graph. `nodes` as in make_fabric.
Fabric build_fabric(const FabricFile& file, int32_t nodes);

}  // namespace refit
