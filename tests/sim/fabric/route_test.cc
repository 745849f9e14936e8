#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/refused.h"
#include "tests/sim/fabric/fabrics.h"

namespace refit {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> names(const Fabric& fabric, const std::vector<int32_t>& links) {
  std::vector<std::string> result;
  for (const int32_t link : links) result.push_back(fabric.links[static_cast<size_t>(link)].name);
  return result;
}

TEST(Route, WithinADomainByNvlink) {
  SmallFabric small;
  small.domain_nodes = 2;
  const Fabric fabric = small.make(4);
  EXPECT_THAT(route(fabric, 3, 3), IsEmpty());
  EXPECT_THAT(names(fabric, route(fabric, 1, 2)),
              ElementsAre("n0.gpu1.nvlink.out", "n0.gpu2.nvlink.in"));
  EXPECT_THAT(names(fabric, route(fabric, 1, 6)),
              ElementsAre("n0.gpu1.nvlink.out", "n1.gpu2.nvlink.in"));
}

TEST(Route, BetweenDomainsByNic) {
  const Fabric fabric = SmallFabric().make(2);
  EXPECT_THAT(names(fabric, route(fabric, 1, 5)), ElementsAre("n0.nic1.out", "n1.nic1.in"));
  EXPECT_THAT(names(fabric, route(fabric, 1, 6)), ElementsAre("n0.nic1.out", "n1.nic2.in"));
}

TEST(Route, OverTheSpineBetweenRailsOnly) {
  SmallFabric small;
  small.network = "{kind: rail-optimized, oversubscription: 2}";
  const Fabric fabric = small.make(2);
  EXPECT_THAT(names(fabric, route(fabric, 1, 5)), ElementsAre("n0.nic1.out", "n1.nic1.in"));
  EXPECT_THAT(names(fabric, route(fabric, 1, 6)),
              ElementsAre("n0.nic1.out", "leaf1.up", "leaf2.down", "n1.nic2.in"));
}

TEST(Route, NothingJoinsTheRailsOfRailOnly) {
  SmallFabric small;
  small.network = "{kind: rail-only}";
  const Fabric fabric = small.make(2);
  EXPECT_THAT(names(fabric, route(fabric, 1, 5)), ElementsAre("n0.nic1.out", "n1.nic1.in"));
  EXPECT_EQ(find_route(fabric, 1, 5), route(fabric, 1, 5));
  EXPECT_EQ(find_route(fabric, 1, 6), std::nullopt);
  expect_refused([&] { route(fabric, 1, 6); },
                 {"fabric small", "n0.gpu1 (rail 1) to n1.gpu2 (rail 2)"});
}

TEST(Route, SwitchesJoinAllNicsOrNot) {
  SmallFabric small;
  EXPECT_TRUE(is_joined(small.make(2)));
  small.network = "{kind: flat}";
  EXPECT_TRUE(is_joined(small.make(2)));
  small.network = "{kind: rail-only}";
  EXPECT_FALSE(is_joined(small.make(2)));
  small.nics = 1;
  EXPECT_TRUE(is_joined(small.make(2))) << "one rail";
}

TEST(Route, WaysUseTheNicsInTurn) {
  SmallFabric small;
  small.gpus = 2;
  const Fabric fabric = small.make(2);
  EXPECT_THAT(names(fabric, route(fabric, 0, 3, 0)), ElementsAre("n0.nic0.out", "n1.nic2.in"));
  EXPECT_THAT(names(fabric, route(fabric, 0, 3, 1)), ElementsAre("n0.nic1.out", "n1.nic3.in"));
  EXPECT_EQ(route(fabric, 0, 3, 2), route(fabric, 0, 3, 0));
  EXPECT_EQ(count_ways(fabric, 0, 3), 2);
  EXPECT_EQ(count_ways(fabric, 0, 1), 1) << "NVLink";
  EXPECT_EQ(count_ways(SmallFabric().make(2), 0, 5), 1);
}

// Four NICs on one side, two on the other: these serve two ways each.
TEST(Route, AsManyWaysAsTheEndWithMoreNics) {
  const Fabric fabric =
      make_fabric({"name: f\ndefault_cost: nominal\n"
                   "kinds:\n"
                   "- {name: a, node: {gpus: 1, nics: 4, nic: 10GB/s, nic_latency: 1us}}\n"
                   "- {name: b, node: {gpus: 1, nics: 2, nic: 10GB/s, nic_latency: 1us}}\n"
                   "network: {kind: flat}\n"
                   "hosts: [{name: x, kind: a}, {name: y, kind: b}]\n",
                   "f.yaml"},
                  2);
  EXPECT_EQ(count_ways(fabric, 0, 1), 4);
  EXPECT_EQ(count_ways(fabric, 1, 0), 4);
  EXPECT_THAT(names(fabric, route(fabric, 0, 1, 3)), ElementsAre("x.nic3.out", "y.nic1.in"));
}

TEST(Route, GpusShareANic) {
  const Fabric fabric = make_fabric(load_fabric_source("emulated-4x4"), 4);
  EXPECT_THAT(names(fabric, route(fabric, 3, 8)), ElementsAre("n0.nic0.out", "n2.nic0.in"));
}

TEST(Route, WithoutNvlinkEvenInANode) {
  SmallFabric small;
  small.nvlink = false;
  const Fabric fabric = small.make(1);
  EXPECT_THAT(names(fabric, route(fabric, 0, 3)), ElementsAre("n0.nic0.out", "n0.nic3.in"));
}

TEST(Route, OneNicForTwoGpusWithoutNvlink) {
  SmallFabric small;
  small.nvlink = false;
  small.nics = 2;
  const Fabric fabric = small.make(1);
  EXPECT_THAT(names(fabric, route(fabric, 0, 1)), ElementsAre("n0.nic0.out", "n0.nic0.in"));
}

/// Every path starts at a port of its sender, ends at a port of its receiver, and each link begins
/// where the one before ends, but for the way over a spine that has no links.
TEST(Route, EveryPathIsConnected) {
  std::vector<Fabric> fabrics;
  for (const char* network : {"{kind: flat}", "{kind: rail-optimized, oversubscription: 1}",
                              "{kind: rail-optimized, oversubscription: 3}"})
    for (const int nics : {2, 4, 8}) {
      SmallFabric small;
      small.network = network;
      small.nics = nics;
      small.domain_nodes = 2;
      fabrics.push_back(small.make(3));
    }
  for (const Fabric& fabric : fabrics)
    for (int32_t from = 0; from < 12; ++from)
      for (int32_t to = 0; to < 12; ++to) {
        if (from == to) continue;
        const std::vector<int32_t> path = route(fabric, from, to, 1);
        ASSERT_GE(path.size(), 2u);
        const auto owner = [&](int32_t vertex, int32_t gpu) {
          const Vertex& v = fabric.vertices[static_cast<size_t>(vertex)];
          const Gpu& g = fabric.gpus[static_cast<size_t>(gpu)];
          if (v.kind == VertexKind::kGpu) return v.index == gpu;
          return v.kind == VertexKind::kNic &&
                 std::find(g.nics.begin(), g.nics.end(), v.index) != g.nics.end();
        };
        EXPECT_TRUE(owner(fabric.links[static_cast<size_t>(path.front())].from, from));
        EXPECT_TRUE(owner(fabric.links[static_cast<size_t>(path.back())].to, to));
        for (size_t i = 1; i < path.size(); ++i) {
          const int32_t end = fabric.links[static_cast<size_t>(path[i - 1])].to;
          const int32_t begin = fabric.links[static_cast<size_t>(path[i])].from;
          const bool over_spine =
              fabric.spine >= 0 && fabric.leaves[0].up < 0 &&
              fabric.vertices[static_cast<size_t>(end)].kind == VertexKind::kLeaf &&
              fabric.vertices[static_cast<size_t>(begin)].kind == VertexKind::kLeaf;
          EXPECT_TRUE(end == begin || over_spine);
        }
      }
}

}  // namespace
}  // namespace refit
