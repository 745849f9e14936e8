#include <gtest/gtest.h>

#include "base/error.h"
#include "sim/simulator/simulator.h"
#include "tests/sim/simulator/small.h"

// What the rules of sim/cost/nccl.h do to a replay. GPUs 0, 1 are node 0, GPUs 2, 3 node 1; NVLink
// 100 bytes/s, NICs 10 bytes/s.

namespace refit {
namespace {

/// 4 channels in all; by NVLink 4 a peer of 20, by network 2 of 3; chunks of 1 KiB, nothing to
/// fill.
CostModel channel_cost() {
  CostModel cost = free_cost();
  cost.nccl.channels = 4;
  cost.nccl.nvlink = {.channels = 4, .rate = 20, .chunk = 1024, .fills = 0};
  cost.nccl.net = {.channels = 2, .rate = 3, .chunk = 1024, .fills = 0};
  return cost;
}

double refit_s(const PlanWriter& writer, const CostModel& cost, Lane lane = Lane::kAny) {
  Plan plan = writer.write();
  for (Channel& channel : plan.channels) channel.lane = lane;
  return simulate(plan, SmallCluster{}.make(2), cost).refit_s;
}

TEST(NcclReplay, ChannelsCapAMessage) {
  // Two ranks by NVLink: P = 4, p = 4, 4 x 2 > 4, so 2. 32 KiB in parts of 128 bytes to 32 KiB: 2
  // channels, 40 bytes/s.
  PlanWriter writer(4, 1);
  writer.send(0, 1, 0, 0, 32768);
  EXPECT_DOUBLE_EQ(refit_s(writer, channel_cost()), 32768 / 40.0);
}

TEST(NcclReplay, OneNetworkPeerThrottlesNvlink) {
  // The same message, and somebody else on the channel at the other node: P = 2, three ranks, p =
  // 1; parts of at most 1 KiB: doubled to 2. A message of 1 KiB would have 1 channel: 20 bytes/s.
  PlanWriter writer(4, 1);
  writer.send(0, 1, 0, 0, 1024);
  EXPECT_DOUBLE_EQ(refit_s(writer, channel_cost()), 1024 / 40.0);
  writer.send(2, 2, 0, 0, 0);  // rank 2 is part of the communicator
  EXPECT_DOUBLE_EQ(refit_s(writer, channel_cost()), 1024 / 20.0);
  // A lane of NVLink has a communicator in each node.
  EXPECT_DOUBLE_EQ(refit_s(writer, channel_cost(), Lane::kNvlink), 1024 / 40.0);
}

TEST(NcclReplay, ChannelsOfTheNetwork) {
  // P = 2; two ranks, p = 2 (2 x 2 <= 4): 3 bytes/s each.
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 6000);
  EXPECT_DOUBLE_EQ(refit_s(writer, channel_cost()), 1000);
}

TEST(NcclReplay, MessagesOfAStepShareTheChannels) {
  // 0 sends to 1, 2 and 3: 4 / 3 channels' worth each. To 2 and 3 that is 4 bytes/s, to 1 26.7.
  PlanWriter writer(4, 1);
  for (const int32_t to : {1, 2, 3}) writer.send(0, to, 0, 0, 6000);
  EXPECT_DOUBLE_EQ(refit_s(writer, channel_cost()), 6000 / 4.0);
}

TEST(NcclReplay, ThePipeFillsFirst) {
  // 2 channels of 20 bytes/s; parts of 16 KiB, a chunk of 1 KiB passes in 51.2 s.
  CostModel cost = channel_cost();
  cost.nccl.nvlink.fills = 1;
  PlanWriter writer(4, 1);
  writer.send(0, 1, 0, 0, 32768);
  EXPECT_DOUBLE_EQ(refit_s(writer, cost), 1024 / 20.0 + 32768 / 40.0);
}

TEST(NcclReplay, OrderInAGroupDoesNotMatter) {
  // NCCL orders the peers of a group itself: the messages of a step start together, all eight.
  PlanWriter writer(10, 1);
  for (int32_t to = 1; to < 9; ++to) writer.send(0, to, 0, 0, 100 * to);
  const Timeline timeline =
      simulate(writer.write(), SmallCluster{}.make(5), channel_cost(), {.entries = true});
  ASSERT_EQ(timeline.entries.size(), 8u);
  for (const TimelineEntry& entry : timeline.entries) EXPECT_EQ(entry.start, 0);
}

TEST(NcclReplay, PxnGoesThroughTheGpuOfTheRail) {
  // 0 (rail 0) to 3 (rail 1): by NVLink to 1, by its NIC to the NIC of 3. The other way is used by
  // 0 to 2 (rail 0), so that without PXN the two share the NIC of 0.
  CostModel cost = free_cost();
  cost.nccl.channels = 32;
  cost.nccl.nvlink = cost.nccl.net = {.channels = 32, .rate = 1e9, .chunk = 1024, .fills = 0};
  PlanWriter writer(4, 1);
  writer.send(0, 3, 0, 0, 100);
  writer.send(0, 2, 0, 0, 100);
  EXPECT_DOUBLE_EQ(refit_s(writer, cost), 20);
  cost.nccl.pxn = true;
  EXPECT_DOUBLE_EQ(refit_s(writer, cost), 10);
}

TEST(NcclReplay, PxnReachesOtherRailsWhereNothingJoinsThem) {
  FabricSource source = load_fabric_source("dgx-h100");
  const std::string kind = "kind: rail-optimized", rest = "oversubscription: 1";
  source.text.replace(source.text.find(kind), kind.size(), "kind: rail-only");
  source.text.replace(source.text.find(rest), rest.size(), "");
  const Fabric fabric = make_fabric(source, 2);
  PlanWriter writer(16, 1);
  writer.send(0, 15, 0, 0, 100);
  CostModel cost = parse_cost(load_cost_source("nccl-h100"));
  EXPECT_THROW(simulate(writer.write(), fabric, cost), Error);
  cost.nccl.pxn = true;
  EXPECT_GT(simulate(writer.write(), fabric, cost).refit_s, 0);
}

}  // namespace
}  // namespace refit
