#include "sim/flow/hop_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/sim/flow/flow_cases.h"

namespace refit {
namespace {

using testing::nominal_rates;
using testing::random_fabric;

/// The links of every hop from one GPU to another, each sorted.
std::set<std::vector<int32_t>> hops_between(const HopGraph& graph, int32_t from, int32_t to) {
  std::set<std::vector<int32_t>> hops;
  for (const GpuPort& out : graph.ports_of(from))
    for (const GpuPort& in : graph.ports_of(to)) {
      const auto port = [&](const GpuPort& p) {
        return static_cast<int32_t>(&p - graph.ports.data());
      };
      if (!out.sends || !in.receives ||
          graph.plane[static_cast<size_t>(out.site)] != graph.plane[static_cast<size_t>(in.site)] ||
          !graph.way(out.site, in.site).open)
        continue;
      std::vector<int32_t> links;
      graph.for_each_link({port(out), port(in)}, [&](int32_t link) { links.push_back(link); });
      std::ranges::sort(links);
      hops.insert(links);
    }
  return hops;
}

// Every route between two GPUs that leads over no third one is a hop.
TEST(HopGraph, HasTheRoutesOfTheFabric) {
  std::mt19937 random(5);
  size_t routes = 0;
  for (int round = 0; round < 200; ++round) {
    const int32_t nodes = 1 + static_cast<int32_t>(random() % 3);
    const int32_t gpus = 1 + static_cast<int32_t>(random() % 4);
    const Fabric fabric = random_fabric(random, nodes, gpus);
    const HopGraph graph = make_hop_graph(fabric, nominal_rates(fabric));
    for (int32_t from = 0; from < nodes * gpus; ++from)
      for (int32_t to = 0; to < nodes * gpus; ++to) {
        if (from == to) continue;
        const auto hops = hops_between(graph, from, to);
        for (const Route& route : list_routes(fabric, from, to)) {
          std::vector<int32_t> links = route.links;
          std::ranges::sort(links);
          const bool bridged = !fabric.gpus[static_cast<size_t>(from)].bridges.empty() &&
                               route.kind == RouteClass::kNvlink && links.size() > 1;
          if (route.kind == RouteClass::kPeerNic || bridged) continue;
          EXPECT_TRUE(hops.contains(links)) << "round " << round << ", " << from << " to " << to;
          ++routes;
        }
      }
  }
  EXPECT_GT(routes, 2000u);
}

TEST(HopGraph, WhatNothingLimitsIsOneSite) {
  const Fabric whole = make_fabric(load_fabric_source("dgx-h100"), 2);
  EXPECT_EQ(make_hop_graph(whole, nominal_rates(whole)).plane.size(), 3u);  // 2 NVSwitches, network
  const Fabric tight = make_fabric(load_fabric_source("dgx-h100-2to1"), 2);
  const HopGraph leaves = make_hop_graph(tight, nominal_rates(tight));
  EXPECT_EQ(leaves.plane.size(), 10u);  // a site for each of eight leaves
  EXPECT_EQ(leaves.planes.size(), 3u);
  const Fabric rails = make_fabric(load_fabric_source("dgx-h100-rail-only"), 2);
  EXPECT_EQ(make_hop_graph(rails, nominal_rates(rails)).planes.size(), 10u);
}

TEST(HopGraph, LinksThatAreDownAreLeftOut) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), 2);
  std::vector<double> rates = nominal_rates(fabric);
  rates[static_cast<size_t>(fabric.nics[3].out)] = 0;
  rates[static_cast<size_t>(fabric.gpus[5].nvlink_in)] = 0;
  rates[static_cast<size_t>(fabric.gpus[5].nvlink_out)] = 0;
  const HopGraph graph = make_hop_graph(fabric, rates);
  EXPECT_EQ(graph.ports_of(5).size(), 1u);  // its NIC
  EXPECT_EQ(graph.ports_of(3).size(), 2u);
  EXPECT_FALSE(graph.ports_of(3)[1].sends);
  EXPECT_TRUE(graph.ports_of(3)[1].receives);
}

}  // namespace
}  // namespace refit
