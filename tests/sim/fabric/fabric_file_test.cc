#include "sim/fabric/fabric_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/fabric/names.h"
#include "tests/refused.h"

namespace refit {
namespace {

using ::testing::ElementsAre;

/// Everything that a file can say: two kinds of nodes, bridges, PCIe, listed NICs, a tree of
/// switches of three tiers, changed links.
constexpr const char* kEverything = R"(name: everything
default_cost: nominal
kinds:
  - name: bridged
    node:
      gpus: 4
      nvlink_latency: 300ns
      bridges: [{gpus: [0, 1], rate: 50GB/s}, {gpus: [1, 2], rate: 25GB/s}]
      nics:
        - {name: mlx5_0, rate: 400Gbps, gpus: [0, 1]}
        - {name: mlx5_3, rate: 200Gbps, rail: 1, gpus: [2, 3]}
        - {name: storage, rate: 100Gbps, rail: 2, gpus: []}
      nic_latency: 1us
      pcie_port: 64GB/s
      pcie_latency: 500ns
      pcie:
        - {name: cpu0, up: 40GB/s}
        - {name: cpu1, up: 40GB/s, gpus: [3], nics: [2]}
        - {name: sw0, parent: cpu0, up: 32GB/s, gpus: [0, 1, 2], nics: [0, 1]}
  - name: switched
    node: {gpus: 2, nvlink: 450GB/s, nvlink_latency: 300ns, nics: 2, nic: 50.5Gbps, nic_latency: 1us}
network:
  kind: switches
  switches:
    - {name: core}
    - {name: pod-a, parent: core, up: 1.6Tbps, latency: 1us}
    - {name: pod-b, parent: core}
    - {name: leaf-1, parent: pod-a, up: 800Gbps, latency: 1us}
    - {name: leaf-2, parent: pod-a, up: 800Gbps, latency: 1us}
    - {name: leaf-3, parent: pod-b, up: 800Gbps, latency: 1us}
hosts:
  - {name: "b[01-02]", kind: bridged, leaves: [leaf-1, leaf-2, ~]}
  - {name: "s[1-2]", kind: switched, domain: rack, leaves: leaf-3}
  - {name: s7, kind: switched, leaves: [leaf-1, core]}
links:
  - {name: "s*.nic1", factor: 0.5}
  - {name: b01.mlx5_0.out, rate: 300Gbps, latency: 2us}
)";

FabricFile everything() { return parse_fabric_file({kEverything, "everything.yaml"}); }

const Link& link_named(const Fabric& fabric, const std::string& name) {
  for (const Link& link : fabric.links)
    if (link.name == name) return link;
  ADD_FAILURE() << "no link " << name;
  return fabric.links[0];
}

std::vector<std::string> names(const Fabric& fabric, const std::vector<int32_t>& links) {
  std::vector<std::string> result;
  for (const int32_t link : links) result.push_back(fabric.links[static_cast<size_t>(link)].name);
  return result;
}

TEST(FabricFile, SavedAndLoadedIsEqual) {
  const FabricFile file = everything();
  const std::string text = print_fabric_file(file);
  const FabricFile again = parse_fabric_file({text, "saved.yaml"});
  EXPECT_EQ(file, again) << text;
  EXPECT_EQ(build_fabric(file, 5), build_fabric(again, 5));
}

TEST(FabricFile, NamedFabricsSurviveSaving) {
  for (const char* name : {"dgx-h100", "gh200-4x4", "dgx-h100-2to1", "emulated-4x4", "aws-p5"}) {
    const FabricFile file = parse_fabric_file(load_fabric_source(name));
    EXPECT_EQ(parse_fabric_file({print_fabric_file(file), "saved.yaml"}), file) << name;
  }
}

TEST(FabricFile, GraphOfEverything) {
  const Fabric fabric = build_fabric(everything(), 5);
  EXPECT_EQ(fabric.gpus.size(), 4u + 4u + 2u + 2u + 2u);
  // Bridges join 0, 1, 2 of each b host; GPU 3 is alone; s1 and s2 are a rack, s7 is not.
  EXPECT_THAT(fabric.domains,
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3), ElementsAre(4, 5, 6),
                          ElementsAre(7), ElementsAre(8, 9, 10, 11), ElementsAre(12, 13)));
  EXPECT_EQ(fabric.rails, 3);
  EXPECT_EQ(fabric.nics[2].out, -1) << "not plugged in";
  EXPECT_EQ(link_named(fabric, "s1.nic1.in").rate, 50.5e9 / 8 / 2);
  EXPECT_EQ(link_named(fabric, "s1.nic0.in").rate, 50.5e9 / 8);
  EXPECT_EQ(link_named(fabric, "b01.mlx5_0.out").rate, 37.5e9);
  EXPECT_EQ(link_named(fabric, "b01.mlx5_0.in").rate, 50e9);
}

TEST(FabricFile, RoutesOfEverything) {
  const Fabric fabric = build_fabric(everything(), 5);
  // Over one bridge and over two.
  EXPECT_THAT(names(fabric, route(fabric, 0, 1)), ElementsAre("b01.gpu0.nvlink.gpu1"));
  EXPECT_THAT(names(fabric, route(fabric, 2, 0)),
              ElementsAre("b01.gpu2.nvlink.gpu1", "b01.gpu1.nvlink.gpu0"));
  // GPU 3 has no NVLink: PCIe, from one CPU to the other.
  EXPECT_THAT(names(fabric, route(fabric, 0, 3)),
              ElementsAre("b01.gpu0.pcie.out", "b01.sw0.up", "b01.cpu0.up", "b01.cpu1.down",
                          "b01.gpu3.pcie.in"));
  // Its NIC hangs from the other CPU: out over PCIe; in at a leaf of another pod.
  EXPECT_THAT(names(fabric, route(fabric, 3, 8)),
              ElementsAre("b01.gpu3.pcie.out", "b01.cpu1.up", "b01.cpu0.down", "b01.sw0.down",
                          "b01.mlx5_3.out", "leaf-2.up", "pod-a.up", "leaf-3.down", "s1.nic0.in"));
  // Leaves of one pod, and a NIC that hangs from the core itself.
  EXPECT_THAT(names(fabric, route(fabric, 8, 13)),
              ElementsAre("s1.nic0.out", "leaf-3.up", "s7.nic1.in"));
}

TEST(FabricFile, RoutesByClass) {
  const FabricFile dgx = parse_fabric_file(load_fabric_source("dgx-h100-rail-only"));
  const Fabric fabric = build_fabric(dgx, 2);
  const std::vector<Route> one_rail = list_routes(fabric, 1, 9);
  ASSERT_EQ(one_rail.size(), 1u);
  EXPECT_EQ(one_rail[0].kind, RouteClass::kOwnNic);
  // Another rail: only over the peer that is on it.
  const std::vector<Route> other_rail = list_routes(fabric, 1, 10);
  ASSERT_EQ(other_rail.size(), 1u);
  EXPECT_EQ(other_rail[0].kind, RouteClass::kPeerNic);
  EXPECT_THAT(names(fabric, other_rail[0].links),
              ElementsAre("n0.gpu1.nvlink.out", "n0.gpu2.nvlink.in", "n0.nic2.out", "n1.nic2.in"));
  EXPECT_EQ(list_routes(fabric, 1, 2)[0].kind, RouteClass::kNvlink);
  EXPECT_EQ(list_routes(fabric, 1, 1)[0].kind, RouteClass::kSelf);
  const Fabric spine = make_fabric(load_fabric_source("dgx-h100-2to1"), 2);
  const std::vector<Route> crossed = list_routes(spine, 1, 10);
  ASSERT_EQ(crossed.size(), 2u);
  EXPECT_EQ(crossed[0].kind, RouteClass::kPeerNic);
  EXPECT_EQ(crossed[1].kind, RouteClass::kSpine);
  EXPECT_THAT(names(spine, crossed[1].links),
              ElementsAre("n0.nic1.out", "leaf1.up", "leaf2.down", "n1.nic2.in"));
  EXPECT_EQ(list_routes(build_fabric(everything(), 5), 0, 3)[0].kind, RouteClass::kHost);
}

TEST(FabricFile, CutsOfEverything) {
  const Fabric fabric = build_fabric(everything(), 5);
  std::vector<double> rates;
  for (const Link& link : fabric.links) rates.push_back(link.rate);
  const std::vector<int32_t> gpu1 = {1}, gpu3 = {3}, s7 = {12, 13};
  // GPU 1: two bridges and its PCIe port.
  EXPECT_DOUBLE_EQ(minimum_cut(fabric, gpu1, true, rates).rate, 50e9 + 25e9 + 64e9);
  // GPU 3: all that others have to send comes up from sw0; between the CPUs 40 GB/s would pass, and
  // its port would let in 64.
  EXPECT_DOUBLE_EQ(minimum_cut(fabric, gpu3, true, rates).rate, 32e9);
  // s7: 50.5 Gbps and half of that.
  EXPECT_DOUBLE_EQ(minimum_cut(fabric, s7, true, rates).rate, 1.5 * 50.5e9 / 8);
}

TEST(FabricFile, Parameters) {
  const auto make = [](const std::string& name, int32_t nodes) {
    return make_fabric(load_fabric_source(name), nodes);
  };
  EXPECT_EQ(make("dgx-h100:gpus=4", 2).nics.size(), 8u);
  EXPECT_EQ(make("aws-p5:gpus=2,nic=200Gbps", 1).nics.size(), 8u);
  EXPECT_EQ(make("aws-p5:gpus=2,nic=200Gbps", 1).links.back().rate, 25e9);
  const Fabric slow = make("dgx-h100:n[1,2].nic*=200Gbps,*.nic5.out=100Gbps", 3);
  const auto rate = [&](size_t node, size_t nic, bool out) {
    const Nic& at = slow.nics[8 * node + nic];
    return slow.links[static_cast<size_t>(out ? at.out : at.in)].rate;
  };
  EXPECT_EQ(rate(0, 4, true), 50e9);
  EXPECT_EQ(rate(1, 4, true), 25e9);
  EXPECT_EQ(rate(2, 5, false), 25e9);
  EXPECT_EQ(rate(0, 5, true), 12.5e9);
  EXPECT_EQ(node_shape(load_fabric_source("gb200-nvl72:segment=4")).nodes_per_domain, 4);
  EXPECT_EQ(node_shape(load_fabric_source("gh200-4x4:nodes=7")).fixed_nodes, 7);
  EXPECT_EQ(make("dgx-h100:oversubscription=4", 2).leaves[0].up >= 0, true);
  EXPECT_EQ(make("gh200-4x4:gpus=2", 4).links.size(), 4u * (2 + 4));
  for (const char* wrong :
       {"dgx-h100:gpus=9", "dgx-h100:gpus=0", "dgx-h100:gpu=4", "dgx-h100:", "dgx-h100:nic=400",
        "dgx-h100:nodes", "gh200-4x4:segment=2", "oci-h100:oversubscription=2",
        "dgx-h100:oversubscription=0.5", "dgx-h100:oversubscription=2x", "no-such:nodes=2"})
    EXPECT_THROW(load_fabric_source(wrong), Error) << wrong;
}

struct Wrong {
  const char* name;
  const char* old_text;
  const char* new_text;
  const char* message;
};

class WrongFabricFile : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongFabricFile, IsRefused) {
  const std::string text = with_change(kEverything, GetParam().old_text, GetParam().new_text);
  expect_refused([&] { make_fabric({text, "wrong.yaml"}, 5); }, {"wrong.yaml", GetParam().message});
}

INSTANTIATE_TEST_SUITE_P(
    FabricFile, WrongFabricFile,
    ::testing::Values(
        Wrong{"KindTwice", "name: switched", "name: bridged", "twice"},
        Wrong{"UnknownKind", "kind: switched, domain", "kind: swiched, domain", "swiched"},
        Wrong{"NoKindOfHost", "kind: switched, domain", "domain", "kind"},
        Wrong{"HostTwice", "\"s[1-2]\"", "\"s[1-7]\"", "s7"},
        Wrong{"RangeFalls", "s[1-2]", "s[2-1]", "rises"},
        Wrong{"BracketOpen", "s[1-2]", "s[1-2", "']'"},
        Wrong{"SwitchTwice", "name: leaf-2", "name: leaf-1", "twice"},
        Wrong{"ParentUnknown", "parent: pod-b", "parent: pod-c", "pod-c"},
        Wrong{"ParentAfterwards", "pod-a, parent: core", "pod-a, parent: leaf-1", "leaf-1"},
        Wrong{"UpWithoutUnit", "up: 1.6Tbps", "up: 1.6", "up"},
        Wrong{"UpWithoutLatency", "up: 1.6Tbps, latency: 1us", "up: 1.6Tbps", "latency"},
        Wrong{"LeafUnknown", "leaves: leaf-3", "leaves: leaf-4", "leaf-4"},
        Wrong{"TooFewLeaves", "leaves: [leaf-1, core]", "leaves: [core]", "2 NICs"},
        Wrong{"BridgeToItself", "gpus: [0, 1], rate: 50GB/s", "gpus: [1, 1], rate: 50GB/s",
              "twice"},
        Wrong{"BridgeAgain", "gpus: [1, 2]", "gpus: [1, 0]", "again"},
        Wrong{"BridgeOutside", "gpus: [1, 2]", "gpus: [1, 4]", "4"},
        Wrong{"BridgesAndSwitch", "      nvlink_latency: 300ns\n      bridges",
              "      nvlink: 450GB/s\n      nvlink_latency: 300ns\n      bridges", "one of them"},
        Wrong{"NicTwice", "name: mlx5_3", "name: mlx5_0", "twice"},
        Wrong{"NicOfNoGpu", "gpus: [2, 3]", "gpus: [2, 9]", "9"},
        Wrong{"NicWithoutRate", "{name: storage, rate: 100Gbps,", "{name: storage,", "rate"},
        Wrong{"HubTwice", "name: cpu1", "name: cpu0", "twice"},
        Wrong{"HubWithoutUp", "{name: cpu1, up: 40GB/s,", "{name: cpu1,", "cpu1"},
        Wrong{"GpuAtTwoHubs", "gpus: [3], nics: [2]", "gpus: [2, 3], nics: [2]", "again"},
        Wrong{"GpuAtNoHub", "gpus: [0, 1, 2], nics: [0, 1]", "gpus: [0, 1], nics: [0, 1]",
              "nowhere"},
        Wrong{"NoPciePort", "      pcie_port: 64GB/s\n", "", "pcie_port"},
        Wrong{"LinkUnknown", "s*.nic1", "s*.nic9", "s*.nic9"},
        Wrong{"FactorZero", "factor: 0.5", "factor: 0", "factor"},
        Wrong{"RateAndFactor", "factor: 0.5", "factor: 0.5, rate: 1Gbps", "one of them"},
        Wrong{"ChangesNothing", ", factor: 0.5", "", "nothing that changes"},
        Wrong{"NodesToo", "links:", "nodes: 5\nlinks:", "nodes"}),
    [](const auto& wrong) { return wrong.param.name; });

TEST(Names, ExpandAndFold) {
  EXPECT_THAT(expand_names("node[01-04,7],gpu-a", "t"),
              ElementsAre("node01", "node02", "node03", "node04", "node7", "gpu-a"));
  EXPECT_THAT(expand_names("r[1-2]n[8-9].x", "t"),
              ElementsAre("r1n8.x", "r1n9.x", "r2n8.x", "r2n9.x"));
  EXPECT_THAT(expand_names("n[098-101]", "t"), ElementsAre("n098", "n099", "n100", "n101"));
  for (const char* list : {"node[01-04],node7,gpu-a", "a,b", "x[9-11]", "n[098-101].gpu0"})
    EXPECT_EQ(fold_names(expand_names(list, "t")), list);
  for (const char* wrong : {"", ",", "n[", "n]", "n[[1]]", "n[]", "n[a]", "n[1-]", "n[-1]",
                            "n[2-1]", "n[1", "n[1-9999999999]", "n[0-1048577]"})
    EXPECT_THROW(expand_names(wrong, "t"), Error) << wrong;
  EXPECT_TRUE(matches_name("n*.nic*", "n12.nic3"));
  EXPECT_TRUE(matches_name("*", ""));
  EXPECT_FALSE(matches_name("n*.nic3", "n12.nic33"));
  EXPECT_FALSE(matches_name("n1", "n12"));
}

}  // namespace
}  // namespace refit
