#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plans/plan.h"
#include "sim/fabric/fabric.h"
#include "sim/simulator/usage.h"

namespace refit {

/// A matrix of parts in [0, 1], row-major: what a heat map shows.
struct Heat {
  std::vector<std::string> rows;
  int32_t columns = 0;
  std::vector<float> part;  // rows x columns
};

/// The refit time cut into `columns` equal spans. By rank that moves anything: the part of each
/// span in which a transfer of its was on its way, in or out.
Heat rank_activity(const Plan& plan, const Timeline& timeline, int32_t columns);

/// By link, in the order given: the part of its achievable rate that was used in each span. A
/// transfer's bytes are spread evenly over its duration (its rate may have changed in truth), so
/// that a part can exceed 1 by a little; it is cut there. At most `rows` links.
Heat link_activity(const Replay& replay, const std::vector<LinkUsage>& uses, const Fabric& fabric,
                   double refit_s, int32_t columns, int32_t rows);

/// Bytes from node to node, local copies left out. Nodes without a rank are left out; more than
/// `most` are shown as groups of neighbours.
struct Traffic {
  std::vector<std::string> names;  // "n3", "n4..n7"
  std::vector<std::string> sides;  // "train", "gen", "train and gen"
  std::vector<int64_t> bytes;      // from x to
};
Traffic node_traffic(const Plan& plan, int32_t most);

}  // namespace refit
