#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace refit {

/// An edge of a bipartite multigraph: one message from a sender's port to a receiver's port.
struct PortPair {
  int32_t from = -1, to = -1;
};

/// Colours the edges so that no port has two edges of one colour, with as many colours as the
/// busiest port has edges (König 1916): colour = stage, so that equal messages finish in the fewest
/// incast-free stages. Alternating paths, O(E (D/64 + V)). Ports are numbered from 0;
/// deterministic.
std::vector<int32_t> colour_edges(std::span<const PortPair> edges);

}  // namespace refit
