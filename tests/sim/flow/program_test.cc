// The price bound and the fluid routing around the optimum of the flow program.

#include <gtest/gtest.h>

#include "sim/flow/multicast.h"
#include "tests/sim/flow/flow_cases.h"
#include "tests/sim/flow/flow_program.h"

namespace refit {
namespace {

using testing::cases;
using testing::flow_program;
using testing::nominal_rates;
using testing::random_fabric;
using testing::random_multicast;

constexpr double kGB = 1e9;

// 4 GB from one GPU to three others behind one NVSwitch of 100 GB/s: each that has some passes it
// on, and 10 GB/s of it may go over the NICs of another node.
TEST(FlowProgram, HandCases) {
  const Fabric fabric = make_fabric(
      {"name: small\ndefault_cost: nominal\nnode: {gpus: 4, nvlink: 100GB/s, nvlink_latency: 1us, "
       "nics: 4, nic: 10GB/s, nic_latency: 1us}\ndomain: {nodes: 1}\nnetwork: {kind: rail-only}\n",
       "small.yaml"},
      2);
  const std::vector<double> rates = nominal_rates(fabric);
  const std::vector<Multicast> broadcast = {{{0}, {1, 2, 3}, 4 * kGB}};
  EXPECT_NEAR(flow_program(fabric, rates, broadcast), 4.0 / 110, 1e-9);
  // To another node: over its own NIC and those of three peers.
  const std::vector<Multicast> across = {{{0}, {4}, 4 * kGB}};
  EXPECT_NEAR(flow_program(fabric, rates, across), 0.1, 1e-9);
}

// price bound <= optimum <= fluid routing, on small instances of all kinds; the bound is within 1 %
// on at least 95 % of them.
TEST(PriceBound, WithinOnePercentOfTheFlowProgram) {
  std::mt19937 random(17);
  int compared = 0, close = 0, level = 0;
  double worst = 1, worst_fluid = 1;
  for (int round = 0; compared < cases(60, 500); ++round) {
    const int32_t nodes = 1 + static_cast<int32_t>(random() % 3);
    const int32_t gpus = nodes == 1 ? 4 : 2 + static_cast<int32_t>(random() % (nodes == 2 ? 2 : 1));
    const Fabric fabric = random_fabric(random, nodes, gpus);
    const std::vector<double> rates = nominal_rates(fabric);
    std::vector<Multicast> items;
    const int count = 1 + static_cast<int>(random() % 5);
    for (int i = 0; i < count; ++i) items.push_back(random_multicast(random, nodes * gpus, 3, 2));
    const double optimum = flow_program(fabric, rates, items);
    const HopGraph graph = make_hop_graph(fabric, rates);
    const FluidRouting fluid = route_fluid(graph, items);
    ASSERT_EQ(fluid.seconds == std::numeric_limits<double>::infinity(),
              optimum == std::numeric_limits<double>::infinity())
        << "round " << round;
    if (optimum == std::numeric_limits<double>::infinity()) continue;
    ++compared;
    EXPECT_LE(fluid.bound, optimum * (1 + 1e-7)) << "round " << round;
    EXPECT_GE(fluid.seconds, optimum * (1 - 1e-7)) << "round " << round;
    close += fluid.bound >= optimum * 0.99;
    level += fluid.seconds <= optimum * 1.01;
    worst = std::min(worst, fluid.bound / optimum);
    worst_fluid = std::max(worst_fluid, fluid.seconds / optimum);
  }
  fmt::print("{} instances: bound within 1 % on {}, worst {:.4f}; fluid on {}, worst {:.4f}\n",
             compared, close, worst, level, worst_fluid);
  EXPECT_GE(close, compared * 95 / 100);
  EXPECT_GE(level, compared * 95 / 100);
}

}  // namespace
}  // namespace refit
