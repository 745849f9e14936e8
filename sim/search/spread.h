#pragma once

#include <cstdint>
#include <vector>

namespace refit {

/// A hop inside an NVLink domain, of what has entered it; `parent` counts within the spread, -1:
/// what brought it into the domain.
struct SpreadHop {
  int32_t from = -1, to = -1;
  int32_t parent = -1;
};

/// How the ranks of a domain that need a box get it from the one by which it entered: from there,
/// or, where they are more than a step has peers, over a grid: the entry passes it on in its column,
/// and each rank of the column in its row. Where all are entries in turn, all send as much, and a
/// rank gets it in two steps with most of its bytes in long messages, rather than in a step per
/// eight.
/// `entry` may be a relay, which needs nothing.
std::vector<SpreadHop> spread_inside(const std::vector<int32_t>& needers, int32_t entry);

}  // namespace refit
