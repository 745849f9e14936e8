#pragma once

// What the readers of foreign files share; import.cc puts their results together.

#include <string>
#include <vector>

#include "base/text.h"
#include "sim/fabric/import.h"

namespace refit {

inline constexpr double kNvlinkLatency = 300e-9;  // as in topologies/: NCCL's tuner, NVLINK, LL
inline constexpr double kNicLatency = 1e-6;       // as in topologies/: an assumption
inline constexpr double kPcieLatency = 500e-9;    // assumption: a switch and a root complex

using Notes = std::vector<std::string>;

/// Nominal rate of one NVLink, one direction, bytes/s. `found` is what asks, for the message.
double nvlink_rate(const std::string& gpu, const std::string& place, const std::string& found);

/// The most NVLinks that a GPU has.
int most_nvlinks(const std::string& gpu);

std::vector<NodeKind> read_nccl_xml(const ImportFile& file, const ImportOptions& options,
                                    Notes& notes);
std::vector<NodeKind> read_smi_topo(const ImportFile& file, const ImportOptions& options,
                                    Notes& notes);

/// NICs and GPUs by distance: every GPU gets its nearest NICs, of those the fastest; GPUs with the
/// same ones share them out evenly. A NIC that is nobody's nearest keeps no owner.
/// `distance[gpu][nic]`, below 0: not reachable.
void give_nearest(const std::vector<std::vector<int>>& distance, NodeKind& kind);

/// A network as its files tell it: hosts with NICs on switches.
struct NetworkNic {
  std::string name;   // as its host calls it, "mlx5_3"; "": the file does not say
  std::string leaf;   // switch
  double rate = 0;    // 0: the file does not say
  std::string place;  // file and line
};
struct NetworkHost {
  std::string name, domain;
  std::vector<NetworkNic> nics;  // with `leaf` alone and no name: all NICs of the host are there
};
struct Network {
  std::vector<NetworkHost> hosts;
  std::vector<SwitchEntry> switches;
};

/// A cable between two switches or a switch and a host; both directions.
struct Cable {
  std::string first, second;
  double rate = 0;
};

/// Makes a tree of switches whose cables are known: leaves are those with hosts; parallel switches
/// of a tier become one.
std::vector<SwitchEntry> make_tree(const std::vector<std::string>& leaves,
                                   const std::vector<Cable>& cables, const std::string& place,
                                   Notes& notes);

Network read_infiniband(const ImportFile& file, Notes& notes);  // ibnetdiscover, iblinkinfo
Network read_slurm(const ImportFile& file, Notes& notes);

}  // namespace refit
