#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plans/plan.h"
#include "sim/fabric/fabric.h"
#include "sim/simulator/simulator.h"

namespace refit {

/// A matrix of parts in [0, 1], row-major: what a heat map shows.
struct Heat {
  std::vector<std::string> rows;
  int32_t columns = 0;
  std::vector<float> part;  // rows x columns
};

/// The refit time cut into `columns` equal spans. By rank that moves anything: the part of each span
/// in which a transfer of its was on its way, in or out.
Heat rank_activity(const Plan& plan, const Timeline& timeline, int32_t columns);

/// By link that carried anything, fullest first: the part of its achievable rate that was used in
/// each span. A transfer's bytes are spread evenly over its duration (its rate may have changed in
/// truth), so that a part can exceed 1 by a little; it is cut there. At most `links` rows.
Heat link_activity(const Plan& plan, const Timeline& timeline, const Fabric& fabric,
                   const std::vector<double>& rates, int32_t columns, int32_t links);

/// Bytes from node to node, local copies left out. Nodes without a rank are left out; more than
/// `most` are shown as groups of neighbours.
struct Traffic {
  std::vector<std::string> names;  // "n3", "n4..n7"
  std::vector<std::string> sides;  // "train", "gen", "train and gen"
  std::vector<int64_t> bytes;      // from x to
};
Traffic node_traffic(const Plan& plan, int32_t most);

/// How full a link was over the whole refit.
struct LinkUse {
  int32_t link = -1;
  double bytes = 0;
  double use = 0;  // bytes / (achievable rate x refit time)
};

/// Links that carried anything, fullest first.
std::vector<LinkUse> link_loads(const Timeline& timeline, const std::vector<double>& rates);

}  // namespace refit
