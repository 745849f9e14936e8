#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "sim/fabric/fabric.h"

namespace refit {

PlacedRanks place_ranks(const NodeShape& shape, std::span<const int32_t> train,
                        std::span<const int32_t> gen) {
  REFIT_CHECK(shape.gpus_per_node > 0 && shape.nodes_per_domain > 0);
  PlacedRanks placed;
  int32_t last_rank = -1;
  for (const auto side : {train, gen})
    for (const int32_t rank : side) {
      if (rank < 0) fail("placement", fmt::format("rank {}", rank), "0 or more");
      last_rank = std::max(last_rank, rank);
    }
  if (last_rank < 0) fail("placement", "no rank", "at least one");
  placed.gpu.assign(static_cast<size_t>(last_rank) + 1, -1);

  int64_t next = 0;
  const auto place_side = [&](std::span<const int32_t> side) {
    std::vector<int32_t> ascending(side.begin(), side.end());
    std::sort(ascending.begin(), ascending.end());
    for (const int32_t rank : ascending) {
      int32_t& gpu = placed.gpu[static_cast<size_t>(rank)];
      if (gpu < 0) gpu = static_cast<int32_t>(next++);
    }
  };
  place_side(train);
  const int64_t domain = int64_t{shape.gpus_per_node} * shape.nodes_per_domain;
  const int64_t used = next;
  next = (used + domain - 1) / domain * domain;
  const int64_t start = next;
  place_side(gen);
  const int64_t end = next > start ? next : used;

  const int64_t nodes = (end + shape.gpus_per_node - 1) / shape.gpus_per_node;
  if (shape.fixed_nodes > 0 && nodes > shape.fixed_nodes)
    fail("placement",
         fmt::format("{} train and {} gen ranks, which take {} nodes of {} GPUs (gen ranks start "
                     "on a new NVLink domain of {} nodes)",
                     train.size(), gen.size(), nodes, shape.gpus_per_node, shape.nodes_per_domain),
         fmt::format("at most the {} nodes of the fabric", shape.fixed_nodes));
  placed.nodes = shape.fixed_nodes > 0 ? shape.fixed_nodes : static_cast<int32_t>(nodes);
  return placed;
}

}  // namespace refit
