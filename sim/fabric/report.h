#pragma once

#include <string>
#include <vector>

#include "sim/fabric/fabric.h"

namespace refit {

/// Counts that say what a fabric is.
struct FabricCounts {
  size_t nodes = 0, gpus = 0, domains = 0, nics = 0, rails = 0, leaves = 0, links = 0;
};
FabricCounts count_parts(const Fabric& fabric);

/// What looks wrong, a line each, in order of links, then of parts; empty: nothing does.
///
/// - a link without a way back, or with another rate or latency than it;
/// - a NIC that no GPU uses, or that is not plugged in; a GPU without a way to the network;
/// - a rate that is eight times, or an eighth of, what such links have: bits taken for bytes. Usual
///   rates: NICs 10 to 1600 Gbps, NVSwitch ports 150, 300, 450, 900 GB/s;
/// - two vertices or links of one name;
/// - parts of the network that nothing joins, which on a rail-only network is no fault.
std::vector<std::string> find_faults(const Fabric& fabric);

/// The fabric as a tree for the terminal: kinds of nodes with what they hold, alike ones in a line;
/// then the network from the top down.
std::string print_tree(const Fabric& fabric);

/// The graph for Graphviz. Nodes are clusters; a link and its way back are one edge.
std::string print_dot(const Fabric& fabric);

}  // namespace refit
