#include "sim/fabric/fabric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/refused.h"
#include "tests/sim/fabric/fabrics.h"

namespace refit {
namespace {

using ::testing::ElementsAre;

Fabric make_named(const std::string& name, int32_t nodes) {
  return make_fabric(load_fabric_source(name), nodes);
}

TEST(Fabric, DgxH100OfTwoNodes) {
  const Fabric fabric = make_named("dgx-h100", 2);
  EXPECT_EQ(fabric.default_cost, "nccl-h100");
  ASSERT_EQ(fabric.nodes.size(), 2u);
  ASSERT_EQ(fabric.gpus.size(), 16u);
  ASSERT_EQ(fabric.nics.size(), 16u);
  EXPECT_EQ(fabric.domains.size(), 2u);
  EXPECT_EQ(fabric.leaves.size(), 8u);
  EXPECT_EQ(fabric.rails, 8);
  // Per GPU NVLink and NIC, both ways; the spine never binds and has no link.
  EXPECT_EQ(fabric.links.size(), 16u * 4u);
  EXPECT_EQ(fabric.vertices[static_cast<size_t>(fabric.spine)].name, "spine");
  EXPECT_EQ(fabric.leaves[0].up, -1);

  const Gpu& gpu = fabric.gpus[11];
  EXPECT_EQ(gpu.node, 1);
  EXPECT_EQ(gpu.domain, 1);
  EXPECT_EQ(gpu.device, 3);
  EXPECT_THAT(gpu.nics, ElementsAre(11));
  const Link& nvlink = fabric.links[static_cast<size_t>(gpu.nvlink_out)];
  EXPECT_EQ(nvlink.name, "n1.gpu3.nvlink.out");
  EXPECT_EQ(nvlink.from, gpu.vertex);
  EXPECT_EQ(fabric.vertices[static_cast<size_t>(nvlink.to)].name, "d1.nvswitch");
  EXPECT_DOUBLE_EQ(nvlink.rate, 450e9);
  const Nic& nic = fabric.nics[11];
  EXPECT_EQ(nic.rail, 3);
  const Link& in = fabric.links[static_cast<size_t>(nic.in)];
  EXPECT_EQ(in.name, "n1.nic3.in");
  EXPECT_EQ(fabric.vertices[static_cast<size_t>(in.from)].name, "leaf3");
  EXPECT_DOUBLE_EQ(in.rate, 50e9);
  EXPECT_DOUBLE_EQ(in.latency, 1e-6);
}

TEST(Fabric, Gb200DomainSpansSixteenTrays) {
  const Fabric fabric = make_named("gb200-nvl72", 17);
  ASSERT_EQ(fabric.domains.size(), 2u);
  EXPECT_EQ(fabric.domains[0].size(), 64u);
  EXPECT_THAT(fabric.domains[1], ElementsAre(64, 65, 66, 67));
  EXPECT_EQ(fabric.gpus[63].node, 15);
  EXPECT_EQ(fabric.gpus[63].domain, 0);
  const NodeShape shape = node_shape(load_fabric_source("gb200-nvl72"));
  EXPECT_EQ(shape.gpus_per_node, 4);
  EXPECT_EQ(shape.nodes_per_domain, 16);
  EXPECT_EQ(shape.fixed_nodes, 0);
}

TEST(Fabric, EmulatedHostsShareOneNic) {
  EXPECT_EQ(node_shape(load_fabric_source("emulated-4x4")).fixed_nodes, 4);
  const Fabric fabric = make_named("emulated-4x4", 4);
  ASSERT_EQ(fabric.gpus.size(), 16u);
  ASSERT_EQ(fabric.nics.size(), 4u);
  EXPECT_EQ(fabric.rails, 1);
  EXPECT_EQ(fabric.leaves.size(), 1u);
  for (const Gpu& gpu : fabric.gpus) EXPECT_THAT(gpu.nics, ElementsAre(gpu.node));
  EXPECT_DOUBLE_EQ(fabric.links[static_cast<size_t>(fabric.nics[0].out)].rate, 50e6);
}

TEST(Fabric, GpusOwnTheNearestNics) {
  const auto owned = [](int gpus, int nics) {
    SmallFabric small;
    small.gpus = gpus;
    small.nics = nics;
    std::vector<std::vector<int32_t>> result;
    const Fabric fabric = small.make(2);
    // Of the second node, whose NICs are numbered on from those of the first.
    for (const int32_t gpu : fabric.nodes[1].gpus) {
      result.push_back(fabric.gpus[static_cast<size_t>(gpu)].nics);
      for (int32_t& nic : result.back()) nic -= nics;
    }
    return result;
  };
  using Owned = std::vector<std::vector<int32_t>>;
  EXPECT_EQ(owned(2, 4), (Owned{{0, 1}, {2, 3}}));
  EXPECT_EQ(owned(4, 2), (Owned{{0}, {0}, {1}, {1}}));
  EXPECT_EQ(owned(2, 3), (Owned{{0, 1}, {2}}));
  EXPECT_EQ(owned(4, 3), (Owned{{0}, {0}, {1}, {2}}));
  EXPECT_EQ(owned(1, 1), (Owned{{0}}));
}

TEST(Fabric, WithoutNvlinkEveryGpuIsADomain) {
  SmallFabric small;
  small.nvlink = false;
  const Fabric fabric = small.make(2);
  EXPECT_EQ(fabric.domains.size(), 8u);
  EXPECT_EQ(fabric.gpus[5].nvlink_in, -1);
  EXPECT_EQ(fabric.gpus[5].domain, 5);
  EXPECT_EQ(fabric.links.size(), 8u * 2u);
}

TEST(Fabric, OversubscriptionLimitsTheSpine) {
  SmallFabric small;
  small.network = "{kind: rail-optimized, oversubscription: 4, latency: 500ns}";
  const Fabric fabric = small.make(6);
  ASSERT_EQ(fabric.leaves.size(), 4u);
  const Link& up = fabric.links[static_cast<size_t>(fabric.leaves[2].up)];
  EXPECT_EQ(up.name, "leaf2.up");
  EXPECT_EQ(up.to, fabric.spine);
  EXPECT_DOUBLE_EQ(up.rate, 6 * 10e9 / 4);
  EXPECT_DOUBLE_EQ(up.latency, 500e-9);
}

TEST(Fabric, ManyNodesAndTheSameTwice) {
  const Fabric fabric = make_named("dgx-h100", 512);
  EXPECT_EQ(fabric.gpus.size(), 4096u);
  EXPECT_EQ(fabric.links.size(), 4u * 4096u);
  EXPECT_EQ(fabric, make_named("dgx-h100", 512));
}

TEST(Fabric, EveryNamedFabricIsRight) {
  for (const char* name : {"dgx-h100", "gb200-nvl72", "emulated-4x4"}) {
    const FabricSource source = load_fabric_source(name);
    const NodeShape shape = node_shape(source);
    const Fabric fabric = make_fabric(source, shape.fixed_nodes > 0 ? shape.fixed_nodes : 3);
    EXPECT_EQ(fabric.name, name);
    for (size_t v = 0; v < fabric.gpus.size(); ++v)
      EXPECT_EQ(fabric.vertices[static_cast<size_t>(fabric.gpus[v].vertex)].index,
                static_cast<int32_t>(v));
    for (const Link& link : fabric.links) {
      EXPECT_GT(link.rate, 0) << link.name;
      EXPECT_NE(link.from, link.to) << link.name;
    }
  }
}

TEST(Fabric, NodeCountHasToFit) {
  const FabricSource emulated = load_fabric_source("emulated-4x4");
  EXPECT_THROW(make_fabric(emulated, 5), Error);
  const FabricSource h100 = load_fabric_source("dgx-h100");
  EXPECT_THROW(make_fabric(h100, 0), Error);
  EXPECT_THROW(make_fabric(h100, -1), Error);
  EXPECT_THROW(make_fabric(h100, 1 << 30), Error);
  EXPECT_THROW(load_fabric_source("no-such-fabric"), Error);
}

/// A right fabric with one text replaced by another that makes it wrong, and what the message has
/// to contain.
struct Wrong {
  const char* name;
  const char* old_text;
  const char* new_text;
  const char* message;
};

class WrongFabric : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongFabric, IsRefused) {
  std::string text = R"(name: wrong
default_cost: nominal
nodes: 2
node:
  gpus: 4
  nvlink: 100GB/s
  nvlink_latency: 300ns
  nics: 2
  nic: 10GB/s
  nic_latency: 1us
domain:
  nodes: 1
network:
  kind: rail-optimized
  oversubscription: 2
)";
  ASSERT_NO_THROW(make_fabric({text, "wrong.yaml"}, 2));
  const std::string wrong = with_change(text, GetParam().old_text, GetParam().new_text);
  expect_refused(
      [&] {
        make_fabric({wrong, "wrong.yaml"}, 2);
      },
      {"wrong.yaml", GetParam().message});
}

INSTANTIATE_TEST_SUITE_P(
    Fabric, WrongFabric,
    ::testing::Values(
        Wrong{"Empty", "name: wrong", "name: \"\"", "name"},
        Wrong{"NoName", "name: wrong\n", "", "name"},
        Wrong{"NoCost", "default_cost: nominal\n", "", "default_cost"},
        Wrong{"UnknownKey", "nodes: 2\n", "nodes: 2\ngpus: 8\n", "gpus"},
        Wrong{"ZeroNodes", "nodes: 2\n", "nodes: 0\n", "nodes"},
        Wrong{"NegativeNodes", "nodes: 2\n", "nodes: -2\n", "nodes"},
        Wrong{"OtherNodes", "nodes: 2\n", "nodes: 3\n", "3 nodes"},
        Wrong{"FractionOfNodes", "nodes: 2\n", "nodes: 1.5\n", "nodes"},
        Wrong{"NodeIsNoMap", "node:\n  gpus: 4", "node: 8\nnode2:\n  gpus: 4", "node"},
        Wrong{"NoGpus", "  gpus: 4\n", "", "gpus"}, Wrong{"ZeroGpus", "gpus: 4", "gpus: 0", "gpus"},
        Wrong{"TooManyGpus", "gpus: 4", "gpus: 100000", "gpus"},
        Wrong{"RateWithoutUnit", "nvlink: 100GB/s", "nvlink: 100", "nvlink"},
        Wrong{"RateInBytes", "nic: 10GB/s", "nic: 10GB", "nic"},
        Wrong{"NegativeRate", "nic: 10GB/s", "nic: -10GB/s", "nic"},
        Wrong{"ZeroRate", "nic: 10GB/s", "nic: 0GB/s", "nic"},
        Wrong{"NotANumber", "nic: 10GB/s", "nic: nanGB/s", "nic"},
        Wrong{"LatencyWithoutUnit", "nic_latency: 1us", "nic_latency: 1", "nic_latency"},
        Wrong{"NegativeLatency", "nic_latency: 1us", "nic_latency: -1us", "nic_latency"},
        Wrong{"NoNvlinkLatency", "  nvlink_latency: 300ns\n", "", "nvlink_latency"},
        Wrong{"LatencyWithoutNvlink", "  nvlink: 100GB/s\n", "", "nvlink_latency"},
        Wrong{"DomainWithoutNvlink", "  nvlink: 100GB/s\n  nvlink_latency: 300ns\n", "", "domain"},
        Wrong{"ZeroNics", "nics: 2", "nics: 0", "nics"},
        Wrong{"UnknownNodeKey", "nics: 2", "nics: 2\n  cpus: 2", "cpus"},
        Wrong{"NoDomain", "domain:\n  nodes: 1\n", "", "domain"},
        Wrong{"ZeroDomain", "domain:\n  nodes: 1", "domain:\n  nodes: 0", "domain"},
        Wrong{"UnknownDomainKey", "domain:\n  nodes: 1", "domain:\n  nodes: 1\n  gpus: 8", "gpus"},
        Wrong{"NoNetworkKind", "  kind: rail-optimized\n", "", "kind"},
        Wrong{"UnknownNetworkKind", "kind: rail-optimized", "kind: torus", "torus"},
        Wrong{"NoRatio", "  oversubscription: 2\n", "", "oversubscription"},
        Wrong{"RatioBelowOne", "oversubscription: 2", "oversubscription: 0.5", "oversubscription"},
        Wrong{"RatioNotANumber", "oversubscription: 2", "oversubscription: .nan",
              "oversubscription"},
        Wrong{"RatioOfFlat", "kind: rail-optimized", "kind: flat", "oversubscription"},
        Wrong{"LatencyOfFullBisection", "oversubscription: 2",
              "oversubscription: 1\n  latency: 1us", "latency"},
        Wrong{"TwiceTheSameKey", "nodes: 2\n", "nodes: 2\nnodes: 2\n", "nodes"},
        Wrong{"NotYaml", "node:\n", "node: [\n", "wrong.yaml"}),
    [](const auto& wrong) { return wrong.param.name; });

}  // namespace
}  // namespace refit
