#include "sim/fabric/report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/fabric/fabric_file.h"
#include "tests/sim/fabric/fabrics.h"

namespace refit {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> faults_of(const std::string& name, const std::string& changes,
                                   int32_t nodes) {
  FabricSource source = load_fabric_source(name);
  source.text += changes;
  return find_faults(make_fabric(source, nodes));
}

TEST(Validate, NamedFabricsAreRight) {
  for (const char* name :
       {"aws-p5", "azure-ndv5", "dgx-a100", "dgx-b200", "dgx-h100", "dgx-h100-2to1", "dgx-h200",
        "emulated-4x4", "gb200-nvl72", "gb300-nvl72", "gcp-a3-mega", "gh200-4x4", "oci-h100"}) {
    const FabricSource source = load_fabric_source(name);
    const NodeShape shape = node_shape(source);
    EXPECT_THAT(find_faults(make_fabric(source, shape.fixed_nodes > 0 ? shape.fixed_nodes : 3)),
                IsEmpty())
        << name;
  }
}

TEST(Validate, RailOnlyJoinsRailsByNvlink) {
  EXPECT_THAT(faults_of("dgx-h100-rail-only", "", 2), IsEmpty());
}

TEST(Validate, AsymmetricLinks) {
  EXPECT_THAT(
      faults_of("dgx-h100", "links: [{name: n1.nic2.out, rate: 200Gbps}]\n", 2),
      ElementsAre(AllOf(HasSubstr("n1.nic2.out"), HasSubstr("25 GB/s"), HasSubstr("50 GB/s"))));
  EXPECT_THAT(faults_of("dgx-h100", "links: [{name: n0.gpu0.nvlink.in, latency: 1us}]\n", 2),
              ElementsAre(HasSubstr("n0.gpu0.nvlink")));
  EXPECT_THAT(faults_of("dgx-h100", "links: [{name: n1.nic2, rate: 200Gbps}]\n", 2), IsEmpty());
  Fabric fabric = SmallFabric().make(2);
  fabric.links.pop_back();
  EXPECT_THAT(find_faults(fabric), Contains(HasSubstr("n1.nic3.out: no link back")));
}

TEST(Validate, OrphanNics) {
  Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), 2);
  fabric.gpus[3].nics.clear();
  EXPECT_THAT(find_faults(fabric), ElementsAre(HasSubstr("n0.nic3: no GPU uses it")));
  const FabricFile file = parse_fabric_file(
      {"name: f\ndefault_cost: nominal\nnode: {gpus: 1, nics: [{name: a, rate: 400Gbps, gpus: "
       "[0]}, "
       "{name: b, rate: 400Gbps, gpus: [0]}], nic_latency: 1us}\nnetwork: {kind: switches, "
       "switches: "
       "[{name: leaf}]}\nhosts: [{name: h1, leaves: leaf}, {name: h2, leaves: [leaf, ~]}]\n",
       "f.yaml"});
  EXPECT_THAT(find_faults(build_fabric(file, 2)), ElementsAre(HasSubstr("h2.b: not plugged in")));
}

TEST(Validate, BitsTakenForBytes) {
  // One NIC of sixteen, eight times too fast or too slow.
  EXPECT_THAT(faults_of("dgx-h100", "links: [{name: n1.nic2, rate: 400GB/s}]\n", 2),
              ElementsAre(AllOf(HasSubstr("n1.nic2"), HasSubstr("bits taken for bytes"))));
  EXPECT_THAT(faults_of("dgx-h100", "links: [{name: n1.nic2, rate: 50Gbps}]\n", 2), SizeIs(1));
  // All of them.
  EXPECT_THAT(faults_of("dgx-h100", "links: [{name: '*.nic*', rate: 400GB/s}]\n", 2),
              ElementsAre(HasSubstr("as in 31 more links")));
  EXPECT_THAT(faults_of("dgx-h100", "links: [{name: '*.nic*', rate: 50Gbps}]\n", 2), SizeIs(1));
  EXPECT_THAT(faults_of("dgx-h100", "links: [{name: '*.nvlink', rate: 450Gbps}]\n", 2), SizeIs(1));
  EXPECT_THAT(faults_of("dgx-h100", "links: [{name: '*.nvlink', rate: 3600GB/s}]\n", 2), SizeIs(1));
  // Slower, but no slip.
  EXPECT_THAT(faults_of("dgx-h100", "links: [{name: '*.nic*', rate: 200Gbps}]\n", 2), IsEmpty());
}

TEST(Validate, DuplicateNames) {
  Fabric fabric = SmallFabric().make(2);
  fabric.vertices[5].name = fabric.vertices[4].name;
  EXPECT_THAT(find_faults(fabric), Contains(HasSubstr("n1.gpu0: a name given twice")));
}

TEST(Validate, Islands) {
  const FabricFile file = parse_fabric_file(
      {"name: f\ndefault_cost: nominal\nnode: {gpus: 1, nics: 1, nic: 400Gbps, nic_latency: 1us}\n"
       "network: {kind: switches, switches: [{name: a}, {name: b}]}\n"
       "hosts: [{name: 'h[1-2]', leaves: a}, {name: h3, leaves: b}]\n",
       "f.yaml"});
  EXPECT_THAT(find_faults(build_fabric(file, 3)),
              ElementsAre(HasSubstr("h1.gpu0: no way from it and 1 more"), HasSubstr("h3.gpu0")));
}

TEST(Show, TreeSaysWhatIsThere) {
  const std::string tree = print_tree(make_fabric(load_fabric_source("dgx-h100-2to1"), 3));
  EXPECT_THAT(tree,
              HasSubstr("3 nodes, 24 GPUs in 3 NVLink domains, 24 NICs on 8 rails, 8 leaves"));
  EXPECT_THAT(tree, HasSubstr("n[0-2]\n  gpu[0-7], NVSwitch 450 GB/s, 1 NIC of 400 Gbps\n"));
  EXPECT_THAT(tree, HasSubstr("leaf3, up 600 Gbps, 3 NICs: n[0-2].nic3\n"));
  EXPECT_THAT(print_tree(make_fabric(load_fabric_source("gb200-nvl72"), 17)),
              HasSubstr("d0: n[0-15]\n"));
  EXPECT_THAT(print_tree(make_fabric(load_fabric_source("gh200-4x4"), 4)),
              HasSubstr("gpu0, NVLink to gpu1 150 GB/s, gpu2 150 GB/s, gpu3 150 GB/s, 1 NIC"));
}

TEST(Show, DotHasEveryVertexAndEdgeOnce) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), 2);
  const std::string dot = print_dot(fabric);
  const auto count = [&](const std::string& text) {
    size_t found = 0;
    for (size_t at = dot.find(text); at != std::string::npos; at = dot.find(text, at + 1)) ++found;
    return found;
  };
  // 16 NVLink and 16 NIC cables; dotted: 16 GPUs to their NICs, 8 leaves to the spine.
  EXPECT_EQ(count("--"), 16u + 16u + 16u + 8u);
  EXPECT_EQ(count("style=dotted"), 16u + 8u);
  EXPECT_EQ(count("subgraph"), 2u);
  EXPECT_EQ(count("label=\"n1.nic7\""), 1u);
}

// The first end of an edge is drawn above the other: spine, leaf, NIC, GPU, NVSwitch.
TEST(Show, DotHasTheNetworkOnTop) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), 2);
  const std::string dot = print_dot(fabric);
  const auto edge = [&](int32_t above, int32_t below) {
    return HasSubstr(fmt::format("\n{}--{} ", above, below));
  };
  const Gpu& gpu = fabric.gpus[9];
  const Nic& nic = fabric.nics[static_cast<size_t>(gpu.nics[0])];
  const int32_t leaf = fabric.links[static_cast<size_t>(nic.out)].to;
  EXPECT_THAT(dot, edge(fabric.spine, leaf));
  EXPECT_THAT(dot, edge(leaf, nic.vertex));
  EXPECT_THAT(dot, edge(nic.vertex, gpu.vertex));
  EXPECT_THAT(dot, edge(gpu.vertex, fabric.links[static_cast<size_t>(gpu.nvlink_out)].to));
}

}  // namespace
}  // namespace refit
