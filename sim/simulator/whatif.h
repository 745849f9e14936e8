#pragma once

#include <string>

#include "sim/fabric/fabric.h"
#include "sim/simulator/simulator.h"

namespace refit {

// Questions to a plan: what if links were faster, slower or down, or a rank lagged behind?

/// Applies TARGET=VALUE to the fabric, both directions of each link:
///
///     nic, nvlink, spine                     all NICs, NVLink ports, ways between leaf and spine
///     nodes[3].nic, nodes[3].nic[2]          those of a node, one of them
///     nodes[3].nvlink, nodes[3].nvlink[2]    ports of a node's GPUs, of its GPU 2
///
/// VALUE is a nominal rate ("800Gbps") or "down" (rate 0). Changes are independent: with faster
/// NICs the spine of an oversubscribed network stays as it is. Fails on what it cannot read, and
/// when the fabric has no such link.
void change_fabric(Fabric& fabric, const std::string& change);

/// "rank=17,x=0.5".
Straggler parse_straggler(const std::string& text);

}  // namespace refit
