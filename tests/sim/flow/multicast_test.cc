#include "sim/flow/multicast.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "sim/flow/symmetry.h"
#include "tests/sim/flow/flow_cases.h"

namespace refit {
namespace {

using testing::nominal_rates;

constexpr double kGB = 1e9;

size_t at(int32_t index) { return static_cast<size_t>(index); }

std::vector<int32_t> range(int32_t first, int32_t last) {
  std::vector<int32_t> gpus(at(last - first));
  std::iota(gpus.begin(), gpus.end(), first);
  return gpus;
}

/// The routing brings everything to everyone, loads are what its trees load, and the prices give
/// the bound.
void expect_sound(const HopGraph& graph, std::span<const Multicast> items,
                  const FluidRouting& fluid) {
  std::vector<double> loads(graph.rates.size(), 0), brought(items.size(), 0);
  for (const TreeShare& share : fluid.shares) {
    const Multicast& item = items[at(share.item)];
    std::set<int32_t> has(item.holders.begin(), item.holders.end());
    for (const PortHop& hop : share.hops) {
      EXPECT_TRUE(has.contains(graph.ports[at(hop.from)].gpu));
      EXPECT_TRUE(has.insert(graph.ports[at(hop.to)].gpu).second);
      graph.for_each_link(hop, [&](int32_t link) { loads[at(link)] += share.bytes; });
    }
    for (const int32_t gpu : item.needers) EXPECT_TRUE(has.contains(gpu));
    brought[at(share.item)] += share.bytes;
  }
  for (size_t i = 0; i < items.size(); ++i)
    EXPECT_NEAR(brought[i], items[i].bytes, 1e-6 * items[i].bytes);
  double fullest = 0, total = 0;
  for (size_t link = 0; link < loads.size(); ++link) {
    EXPECT_NEAR(fluid.loads[link], loads[link], 1e-6 * graph.rates[link] * fluid.seconds);
    if (loads[link] > 0) fullest = std::max(fullest, loads[link] / graph.rates[link]);
  }
  EXPECT_NEAR(fluid.seconds, fullest, 1e-6 * fullest);
  if (fluid.prices.empty()) return;
  for (size_t link = 0; link < loads.size(); ++link)
    total += graph.rates[link] * fluid.prices[link];
  EXPECT_NEAR(total, 1, 1e-9);
  EXPECT_NEAR(fluid.bound, price_bound(graph, items, fluid.prices), 1e-9 * fluid.bound);
  EXPECT_LE(fluid.bound, fluid.seconds);
}

/// The routing takes the seconds that it should, to `part` of them, and the bound says so.
void expect_optimum(const Fabric& fabric, std::span<const Multicast> items, double seconds,
                    double part) {
  const HopGraph graph = make_hop_graph(fabric, nominal_rates(fabric));
  const FluidRouting fluid = route_fluid(graph, items);
  expect_sound(graph, items, fluid);
  EXPECT_NEAR(fluid.seconds, seconds, seconds * part);
  EXPECT_NEAR(fluid.bound, seconds, seconds * part);
}

/// An all-gather: every GPU holds a part, all need it.
std::vector<Multicast> all_gather(int32_t gpus, double bytes) {
  std::vector<Multicast> items;
  for (int32_t gpu = 0; gpu < gpus; ++gpu) {
    Multicast item = {{gpu}, range(0, gpus), bytes / gpus};
    item.needers.erase(item.needers.begin() + gpu);
    items.push_back(std::move(item));
  }
  return items;
}

// The optimum of an all-gather among N H100s on 8 rails that nothing joins, as ForestColl
// (arXiv 2402.06787) finds it, is the smaller of what one GPU takes in, 500 N / (N - 1) GB/s (450
// with NVLink alone for N = 8), and of what 8 NICs bring to a node, 400 N / (N - 8).
class AllGather : public ::testing::TestWithParam<int32_t> {};

TEST_P(AllGather, ReachesTheOptimum) {
  const int32_t gpus = GetParam();
  const double bytes = 64 * kGB;
  const double best =
      gpus == 8 ? 450.0 * 8 / 7 : std::min(500.0 * gpus / (gpus - 1), 400.0 * gpus / (gpus - 8));
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100-rail-only"), gpus / 8);
  const HopGraph graph = make_hop_graph(fabric, nominal_rates(fabric));
  const std::vector<Multicast> items = all_gather(gpus, bytes);
  const FluidRouting fluid = route_fluid(graph, items);
  expect_sound(graph, items, fluid);
  EXPECT_LE(fluid.seconds, bytes / (best * kGB) * 1.005);
  EXPECT_GE(fluid.seconds, bytes / (best * kGB) * (1 - 1e-9));
  EXPECT_LE(fluid.bound, bytes / (best * kGB));
  EXPECT_GE(fluid.bound, bytes / (best * kGB) * 0.995);
  RecordProperty("algbw", std::to_string(bytes / fluid.seconds / kGB));
}

INSTANTIATE_TEST_SUITE_P(Gpus, AllGather, ::testing::Values(8, 16, 32, 64),
                         [](const auto& tested) { return std::to_string(tested.param); });

// With a spine NICs serve GPUs of one node, too: 500 GB/s into a GPU, and 8/7 of it.
TEST(AllGather, InOneNodeOverTheSpine) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), 1);
  const HopGraph graph = make_hop_graph(fabric, nominal_rates(fabric));
  const std::vector<Multicast> items = all_gather(8, 64 * kGB);
  const FluidRouting fluid = route_fluid(graph, items);
  expect_sound(graph, items, fluid);
  EXPECT_NEAR(64 / fluid.seconds, 571.43, 571.43 * 0.005);
  EXPECT_NEAR(64 / fluid.bound, 571.43, 571.43 * 0.005);
}

// One holder, needed on a second node by one GPU. 50 GB/s by its own NIC; the others of its node
// have seven more to lend, as do those of the needer's: 450 GB/s of NVLink pass 350, and its own
// NIC 50.
TEST(Fluid, RelaysAtBothEnds) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), 2);
  const std::vector<Multicast> items = {{{0}, {8}, 4 * kGB}};
  expect_optimum(fabric, items, 0.01, 0.002);
}

// 8 GB held once and needed in four other nodes: the source's node sends it once, 400 GB/s; who has
// it passes it on.
TEST(Fluid, NeedersPassItOn) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), 5);
  std::vector<Multicast> items;
  for (int32_t gpu = 0; gpu < 8; ++gpu)
    items.push_back({{gpu}, {8 + gpu, 16 + gpu, 24 + gpu, 32 + gpu}, kGB});
  expect_optimum(fabric, items, 0.02, 0.003);
}

// Two needs of one GPU, 9 GB from its node and 2 GB from another: its NVLink and its NICs bind
// together. No cut of one kind of link says so, but the one around the GPU: 11 GB at 500 GB/s.
TEST(Fluid, NvlinkAndNicTogether) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100-rail-only"), 2);
  const std::vector<Multicast> items = {{{1}, {0}, 9 * kGB}, {{8}, {0}, 2 * kGB}};
  expect_optimum(fabric, items, 0.022, 0.002);
}

TEST(Fluid, NothingToMoveAndNoWay) {
  const Fabric fabric = make_fabric(
      {"name: small\ndefault_cost: nominal\nnode: {gpus: 2, nics: 2, nic: 10GB/s, nic_latency: "
       "1us}\nnetwork: {kind: rail-only}\n",
       "small.yaml"},
      1);
  const HopGraph graph = make_hop_graph(fabric, nominal_rates(fabric));
  const FluidRouting nothing = route_fluid(graph, {});
  EXPECT_EQ(nothing.seconds, 0);
  EXPECT_EQ(nothing.bound, 0);
  const std::vector<Multicast> items = {{{0}, {1}, kGB}};
  EXPECT_EQ(route_fluid(graph, items).seconds, std::numeric_limits<double>::infinity());
}

TEST(Fluid, SameInputsSameRouting) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), 4);
  const HopGraph graph = make_hop_graph(fabric, nominal_rates(fabric));
  std::mt19937 random(2);
  std::vector<Multicast> items;
  for (int i = 0; i < 40; ++i) items.push_back(testing::random_multicast(random, 32, 16, 4));
  const FluidRouting one = route_fluid(graph, items), two = route_fluid(graph, items);
  EXPECT_EQ(one.loads, two.loads);
  EXPECT_EQ(one.prices, two.prices);
  EXPECT_EQ(one.bound, two.bound);
  expect_sound(graph, items, one);
}

// A bound that is known already ends the search for a better one.
TEST(Fluid, EndsAtAKnownBound) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100-rail-only"), 2);
  const HopGraph graph = make_hop_graph(fabric, nominal_rates(fabric));
  const std::vector<Multicast> items = all_gather(16, 64 * kGB);
  const double best = 64 / (500.0 * 16 / 15);
  const FluidRouting fluid = route_fluid(graph, items, {.gap = 0.02, .at_least = best});
  EXPECT_LE(fluid.seconds, best * 1.02);
}

// All NICs of a side are alike, and all NVLink ports; with one class of another size they are not.
TEST(Symmetry, LinksThatAreAlikeHaveOneColour) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), 4);
  const HopGraph graph = make_hop_graph(fabric, nominal_rates(fabric));
  std::vector<Multicast> items;
  for (int32_t gpu = 0; gpu < 16; ++gpu) items.push_back({{gpu}, {16 + gpu}, kGB});
  const auto colours_of = [&] {
    const std::vector<int32_t> colours = colour_links(graph, items);
    return std::set<int32_t>(colours.begin(), colours.end()).size();
  };
  EXPECT_EQ(colours_of(), 8u);  // NIC and NVLink, in and out, of either side
  items[3].bytes *= 2;
  EXPECT_GT(colours_of(), 8u);
}

}  // namespace
}  // namespace refit
