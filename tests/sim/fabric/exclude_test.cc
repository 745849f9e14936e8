#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "sim/fabric/fabric_file.h"
#include "sim/fabric/report.h"
#include "tests/refused.h"
#include "tests/sim/fabric/fabrics.h"

namespace refit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names(const Fabric& fabric, const std::vector<int32_t>& links) {
  std::vector<std::string> result;
  for (const int32_t link : links) result.push_back(fabric.links[static_cast<size_t>(link)].name);
  return result;
}

Fabric without(const Fabric& fabric, std::vector<std::string> what) {
  return exclude(fabric, what);
}

/// What is left, by name: the oracle is a fabric in which the excluded names were never made.
TEST(Exclude, ANodeIsAsIfItHadNeverBeen) {
  const Fabric whole = SmallFabric().make(3);
  const Fabric left = without(whole, {"n2"});
  const Fabric never = SmallFabric().make(2);
  EXPECT_EQ(left.gpus, never.gpus);
  EXPECT_EQ(left.nics.size(), never.nics.size());
  EXPECT_EQ(left.domains, never.domains);
  for (int32_t a = 0; a < 8; ++a)
    for (int32_t b = 0; b < 8; ++b)
      EXPECT_EQ(names(left, route(left, a, b)), names(never, route(never, a, b)));
  EXPECT_EQ(find_faults(left), find_faults(never));
}

TEST(Exclude, NumbersCloseUpAndNamesStay) {
  const Fabric left = without(SmallFabric().make(3), {"n[0,2].gpu1", "n1"});
  EXPECT_EQ(left.nodes.size(), 2u);
  EXPECT_EQ(left.gpus.size(), 6u);
  EXPECT_EQ(left.vertices[static_cast<size_t>(left.gpus[1].vertex)].name, "n0.gpu2");
  EXPECT_EQ(left.gpus[1].device, 2);
  EXPECT_EQ(left.nodes[1].name, "n2");
  EXPECT_THAT(names(left, route(left, 1, 4)), ElementsAre("n0.nic2.out", "n2.nic2.in"));
  for (size_t v = 0; v < left.vertices.size(); ++v)
    if (left.vertices[v].kind == VertexKind::kGpu) {
      EXPECT_EQ(left.gpus[static_cast<size_t>(left.vertices[v].index)].vertex,
                static_cast<int32_t>(v));
    }
}

TEST(Exclude, AGpuWithoutItsNicUsesThatOfAPeer) {
  const Fabric left = without(SmallFabric().make(2), {"n1.nic2"});
  EXPECT_TRUE(left.gpus[6].nics.empty());
  // GPU 6 is device 2 of n1: of the peers 0, 1 and 3 it takes the one at its place, 3.
  EXPECT_THAT(names(left, route(left, 2, 6)),
              ElementsAre("n0.nic2.out", "n1.nic3.in", "n1.gpu3.nvlink.out", "n1.gpu2.nvlink.in"));
  EXPECT_THAT(names(left, route(left, 6, 1, 1)),
              ElementsAre("n1.gpu2.nvlink.out", "n1.gpu3.nvlink.in", "n1.nic3.out", "n0.nic1.in"));
  std::vector<double> rates;
  for (const Link& link : left.links) rates.push_back(link.rate);
  const std::vector<int32_t> n1 = {4, 5, 6, 7}, gpu6 = {6};
  EXPECT_DOUBLE_EQ(minimum_cut(left, n1, true, rates).rate, 3 * 10e9);
  EXPECT_DOUBLE_EQ(minimum_cut(left, gpu6, true, rates).rate, 100e9);
}

TEST(Exclude, BridgesThatNoLongerJoin) {
  const FabricFile file = parse_fabric_file(
      {"name: chain\ndefault_cost: nominal\nnode: {gpus: 3, nvlink_latency: 1us, bridges: [{gpus: "
       "[0, "
       "1], rate: 1GB/s}, {gpus: [1, 2], rate: 1GB/s}], nics: 3, nic: 1Gbps, nic_latency: 1us}\n"
       "network: {kind: flat}\n",
       "chain.yaml"});
  const Fabric left = without(build_fabric(file, 1), {"n0.gpu1"});
  EXPECT_THAT(left.domains, ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(names(left, route(left, 0, 1)), ElementsAre("n0.nic0.out", "n0.nic2.in"));
}

TEST(Exclude, RefusesWhatIsNotThere) {
  const Fabric fabric = SmallFabric().make(2);
  for (const char* wrong : {"n2", "n0.gpu4", "gpu0", "n0.nvlink", "n[0-2]", "leaf0", "", "n["})
    EXPECT_THROW(without(fabric, {wrong}), Error) << wrong;
  EXPECT_THROW(without(fabric, {"*"}), Error) << "nothing is left";
}

std::vector<int32_t> range(int32_t first, int32_t last) {
  std::vector<int32_t> ranks(static_cast<size_t>(last - first));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

/// On a whole fabric of equal nodes, the general placement is the one that counts nodes.
TEST(Place, OnAFabricAsByShape) {
  for (const int domain_nodes : {1, 2, 3})
    for (int32_t train = 1; train < 14; ++train)
      for (int32_t gen = 1; gen < 14; ++gen) {
        SmallFabric small;
        small.domain_nodes = domain_nodes;
        const PlacedRanks by_shape =
            place_ranks(node_shape(small.source()), range(0, train), range(train, train + gen));
        const PlacedRanks placed =
            place_ranks(small.make(by_shape.nodes), range(0, train), range(train, train + gen));
        EXPECT_EQ(placed.gpu, by_shape.gpu);
        EXPECT_EQ(placed.nodes, by_shape.nodes);
      }
}

TEST(Place, AroundWhatIsExcluded) {
  const Fabric left = without(SmallFabric().make(4), {"n0.gpu0", "n1"});
  const PlacedRanks placed = place_ranks(left, range(0, 3), range(3, 5));
  EXPECT_THAT(placed.gpu, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(left.vertices[static_cast<size_t>(left.gpus[3].vertex)].name, "n2.gpu0");
  EXPECT_THROW(place_ranks(left, range(0, 12), range(12, 13)), Error);
}

std::vector<int32_t> place(const std::string& text) {
  SmallFabric small;
  small.domain_nodes = 2;
  return place_ranks(small.make(4), range(0, 3), range(3, 6), {text, "place.yaml"}).gpu;
}

TEST(Place, ByFile) {
  EXPECT_THAT(place("train: n3\ngen: n[0-1]\n"), ElementsAre(12, 13, 14, 0, 1, 2));
  EXPECT_THAT(place("train: d1\ngen: n[0-1].gpu[2-3]\n"), ElementsAre(8, 9, 10, 2, 3, 6));
  EXPECT_THAT(place("train: n0\ngen: n2\nranks: {1: n1.gpu3, 4: n0.gpu0}\n"),
              ElementsAre(1, 7, 2, 8, 0, 9));
  EXPECT_THAT(place("train: n2,n0\ngen: '*.gpu3'\n"), ElementsAre(8, 9, 10, 3, 7, 11));
}

TEST(Place, RefusesWrongFiles) {
  const auto refused = [](const std::string& text) { return error_of([&] { place(text); }); };
  EXPECT_THAT(refused("train: n0\n"), HasSubstr("no GPU for rank 3"));
  EXPECT_THAT(refused("train: n9\ngen: n1\n"), HasSubstr("n9"));
  EXPECT_THAT(refused("train: n0\ngen: n0\n"), HasSubstr("rank 4"));
  EXPECT_THAT(refused("train: n0\ngen: n1\nranks: {0: n2}\n"), HasSubstr("4 GPUs"));
  EXPECT_THAT(refused("train: n0\ngen: n1\nranks: {9: n2.gpu0}\n"), HasSubstr("9"));
  EXPECT_THAT(refused("train: n0\ngen: n1\nranks: {0: n2.gpu0, 1: n2.gpu0}\n"),
              HasSubstr("one rank"));
  EXPECT_THAT(refused("train: n0\ngen: n1\nhosts: n2\n"), HasSubstr("hosts"));
  EXPECT_THAT(refused("train: [n0]\ngen: n1\n"), HasSubstr("place.yaml:1"));
}

}  // namespace
}  // namespace refit
