#pragma once

#include <fmt/format.h>

#include <string>

#include "sim/search/search.h"

namespace refit::testing {

/// Nodes of so many GPUs, each with a NIC of its own, on one switch.
inline FabricSource small_fabric(size_t gpus = 4, size_t nodes_per_domain = 1) {
  return {fmt::format("name: small\ndefault_cost: nominal\n"
                      "node: {{gpus: {0}, nvlink: 450GB/s, nvlink_latency: 1us, nics: {0}, nic: "
                      "400Gbps, nic_latency: 1us}}\n"
                      "domain: {{nodes: {1}}}\n"
                      "network: {{kind: rail-optimized, oversubscription: 1}}\n",
                      gpus, nodes_per_domain),
          "small"};
}

/// Puts the ranks of a problem that has both layouts on nodes of four GPUs, gen ranks on nodes of
/// their own.
inline void place_on_small_fabric(Problem& problem) {
  const FabricSource source = small_fabric();
  const PlacedRanks placed =
      place_ranks(node_shape(source), problem.train.ranks, problem.gen.ranks);
  problem.fabric = make_fabric(source, placed.nodes);
  problem.gpu_of_rank = placed.gpu;
  problem.cost = parse_cost(load_cost_source("nominal"));
}

/// A problem by the specs of its layouts, the gen ranks behind the train ranks.
inline Problem make_small_problem(const Model& model, const std::string& train,
                                  const std::string& gen) {
  Problem problem;
  problem.model = model;
  problem.train = load_layout(train, model, Side::kTrain, 0);
  problem.gen =
      load_layout(gen, model, Side::kGen, static_cast<int32_t>(problem.train.ranks.size()));
  problem.demand = make_demand(model, problem.train, problem.gen);
  place_on_small_fabric(problem);
  return problem;
}

}  // namespace refit::testing
