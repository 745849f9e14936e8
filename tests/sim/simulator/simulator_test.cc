#include "sim/simulator/simulator.h"

#include <gtest/gtest.h>

#include "tests/sim/simulator/small.h"

// Every rule of the essay in simulator.h, followed by hand. GPUs 0, 1 are node 0, GPUs 2, 3 node 1,
// and so on; NVLink 100 bytes/s, NICs 10 bytes/s.

namespace refit {
namespace {

Timeline replay(const PlanWriter& writer, const CostModel& cost, const SmallCluster& cluster = {},
                int32_t nodes = 2) {
  return simulate(writer.write(), cluster.make(nodes), cost, {.entries = true});
}

TEST(Simulator, EmptyPlanTakesNoTime) {
  PlanWriter writer(4, 1);
  const Timeline timeline = replay(writer, free_cost());
  EXPECT_EQ(timeline.refit_s, 0);
  EXPECT_EQ(timeline.bottleneck, -1);
  EXPECT_EQ(timeline.rank_end, std::vector<double>(4, 0));
}

TEST(Simulator, TwoFlowsShareAPort) {
  // Both leave by the NIC of GPU 0 at 5: 100 / 5 = 20 s.
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 3, 0, 0, 100);
  EXPECT_DOUBLE_EQ(replay(writer, free_cost()).refit_s, 20);
}

TEST(Simulator, FlowSpeedsUpWhenAnotherEnds) {
  // 5 each until 50 bytes are through at 10 s; the other has 50 left at 10: 15 s.
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 50);
  writer.send(0, 3, 0, 0, 100);
  const Timeline timeline = replay(writer, free_cost());
  EXPECT_DOUBLE_EQ(timeline.rank_end[2], 10);
  EXPECT_DOUBLE_EQ(timeline.rank_end[3], 15);
  EXPECT_DOUBLE_EQ(timeline.rank_end[0], 15);
}

TEST(Simulator, FlowsOverOneReceiverLeaveSendersIdle) {
  // 0 and 1 send 100 each to 2 at 5 each; 0 sends 100 to 3 as well, with what is left of its port:
  // 10 - 5 = 5. All end at 20 s.
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  writer.send(1, 2, 0, 0, 100);
  writer.send(0, 3, 0, 0, 100);
  EXPECT_DOUBLE_EQ(replay(writer, free_cost()).refit_s, 20);
}

TEST(Simulator, NvlinkAndNicAreDifferentPorts) {
  // 100 bytes by NVLink in 1 s, 100 by NIC in 10 s, at once.
  PlanWriter writer(4, 2);
  writer.send(0, 1, 0, 0, 100);
  writer.send(0, 2, 1, 0, 100);
  const Timeline timeline = replay(writer, free_cost());
  EXPECT_DOUBLE_EQ(timeline.rank_end[1], 1);
  EXPECT_DOUBLE_EQ(timeline.rank_end[2], 10);
}

TEST(Simulator, BothDirectionsAreIndependent) {
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  writer.send(2, 0, 0, 0, 100);
  EXPECT_DOUBLE_EQ(replay(writer, free_cost()).refit_s, 10);
}

TEST(Simulator, AchievableRatesNotNominalOnes) {
  CostModel cost = free_cost();
  cost.net.efficiency = 0.5;  // 5 bytes/s
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  EXPECT_DOUBLE_EQ(replay(writer, cost).refit_s, 20);
}

TEST(Simulator, CapOfAFlow) {
  // 4 at most: 100 bytes need 25 s; a second flow has 4 as well, since 2 x 4 < 10.
  CostModel cost = free_cost();
  cost.net.flow_rate = 4;
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 3, 0, 0, 80);
  const Timeline timeline = replay(writer, cost);
  EXPECT_DOUBLE_EQ(timeline.rank_end[2], 25);
  EXPECT_DOUBLE_EQ(timeline.rank_end[3], 20);
}

TEST(Simulator, CapOfAFlowIsThatOfItsLane) {
  CostModel cost = free_cost();
  cost.net.flow_rate = 4;
  PlanWriter writer(4, 1);
  writer.send(0, 1, 0, 0, 100);
  EXPECT_DOUBLE_EQ(replay(writer, cost).refit_s, 1);
}

TEST(Simulator, CapOfAGpu) {
  // GPU 0 moves 12 in all, out: 6 by NVLink and 6 by NIC. 60 bytes by NVLink end at 10 s; the NIC
  // then rises to its own 10: 100 - 60 = 40 left, 4 s.
  CostModel cost = free_cost();
  cost.gpu_rate = 12;
  PlanWriter writer(4, 2);
  writer.send(0, 1, 0, 0, 60);
  writer.send(0, 2, 1, 0, 100);
  const Timeline timeline = replay(writer, cost);
  EXPECT_DOUBLE_EQ(timeline.rank_end[1], 10);
  EXPECT_DOUBLE_EQ(timeline.rank_end[2], 14);
}

TEST(Simulator, CapOfAGpuIsPerDirection) {
  // In and out at 5 each, not 2.5.
  CostModel cost = free_cost();
  cost.gpu_rate = 5;
  PlanWriter writer(4, 1);
  writer.send(0, 1, 0, 0, 50);
  writer.send(1, 0, 0, 0, 50);
  EXPECT_DOUBLE_EQ(replay(writer, cost).refit_s, 10);
}

TEST(Simulator, StepsOfAChannelRunInOrderAndPayTheStartUpEach) {
  CostModel cost = free_cost();
  cost.net.step_start = 5;
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 2, 0, 1, 100);  // 5 + 10 + 5 + 10
  const Timeline timeline = replay(writer, cost);
  EXPECT_DOUBLE_EQ(timeline.refit_s, 30);
  EXPECT_DOUBLE_EQ(timeline.entries[1].posted, 15);
  EXPECT_DOUBLE_EQ(timeline.entries[1].start, 20);
}

TEST(Simulator, StartUpOccupiesTheLaneAndNotTheLink) {
  // Lane 0: 5 s of start-up, 100 bytes, 5 s, 50 bytes. Lane 1: 5 s, 50 bytes. 5..15 both at 5 (50
  // bytes each), 15..20 lane 0 alone at 10 ends its 100 bytes; then start-up till 25 and 5 s more.
  CostModel cost = free_cost();
  cost.net.step_start = 5;
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 2, 0, 1, 50);
  writer.send(0, 2, 1, 0, 50);
  EXPECT_DOUBLE_EQ(replay(writer, cost).refit_s, 30);

  // A third lane's 50 bytes fit into the gap 20..25 that the start-up leaves on the link: nothing
  // takes longer.
  PlanWriter fuller(4, 2);
  fuller.send(0, 2, 0, 0, 100);
  fuller.send(0, 2, 0, 1, 50);
  fuller.send(0, 2, 1, 0, 50);
  fuller.send(0, 2, 1, 1, 50);  // lane 1: ready again at 15 + 5 = 20, flows 20..25
  EXPECT_DOUBLE_EQ(replay(fuller, cost).refit_s, 30);
}

TEST(Simulator, StartUpOfTheLanesClass) {
  CostModel cost = free_cost();
  cost.nvlink.step_start = 1;
  cost.net.step_start = 5;
  cost.nvlink.message_start = 0.25;
  cost.net.message_start = 0.5;
  PlanWriter inside(4, 1);
  inside.send(0, 1, 0, 0, 100);
  EXPECT_DOUBLE_EQ(replay(inside, cost).refit_s, 1 + 0.25 + 1);
  PlanWriter between(4, 1);
  between.send(0, 2, 0, 0, 100);
  EXPECT_DOUBLE_EQ(replay(between, cost).refit_s, 5 + 0.5 + 10);
  // A step of both pays the larger one for all its messages, at rank 0; rank 1 is ready after 1 s,
  // and waits.
  PlanWriter both(4, 1);
  both.send(0, 1, 0, 0, 100);
  both.send(0, 2, 0, 0, 100);
  const Timeline timeline = replay(both, cost);
  EXPECT_DOUBLE_EQ(timeline.rank_end[1], 5 + 0.25 + 1);
  EXPECT_DOUBLE_EQ(timeline.rank_end[2], 5 + 0.5 + 10);
}

TEST(Simulator, LatenciesOfTheRouteAddUp) {
  SmallCluster cluster;
  cluster.nic_latency = 0.5;
  cluster.nvlink_latency = 0.125;
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100);  // NIC out, NIC in
  writer.send(0, 1, 1, 0, 100);  // NVLink out, NVLink in
  const Timeline timeline = replay(writer, free_cost(), cluster);
  EXPECT_DOUBLE_EQ(timeline.rank_end[2], 11);
  EXPECT_DOUBLE_EQ(timeline.rank_end[1], 1.25);
}

TEST(Simulator, PackingOverlapsWithTheStartUp) {
  // Sender: packs 1 + 100 / 50 = 3 s, start-up 2 s: ready at 3. Flows 3..13. Receiver unpacks 1 +
  // 2: 16. The sender is done at 13.
  CostModel cost = free_cost();
  cost.memory_rate = 50;
  cost.copy_start = 1;
  cost.net.step_start = 2;
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100, 2, 2);
  const Timeline timeline = replay(writer, cost);
  EXPECT_DOUBLE_EQ(timeline.entries[0].start, 3);
  EXPECT_DOUBLE_EQ(timeline.rank_end[0], 13);
  EXPECT_DOUBLE_EQ(timeline.rank_end[2], 16);
}

TEST(Simulator, PacksOnlyWhatNeedsIt) {
  CostModel cost = free_cost();
  cost.memory_rate = 50;
  cost.net.step_start = 1;
  PlanWriter sender_only(4, 1);
  sender_only.send(0, 2, 0, 0, 100, 2, 1);  // packs 2 s, flows 10 s
  EXPECT_DOUBLE_EQ(replay(sender_only, cost).refit_s, 12);
  PlanWriter receiver_only(4, 1);
  receiver_only.send(0, 2, 0, 0, 100, 1, 2);  // start-up 1 s, 10 s, unpacks 2 s
  EXPECT_DOUBLE_EQ(replay(receiver_only, cost).refit_s, 13);
  // One job for the step: 100 + 50 bytes in 3 s. The 50 that go in place still wait for it: one
  // group.
  PlanWriter one_job(4, 1);
  one_job.send(0, 1, 0, 0, 100, 2, 1);
  one_job.send(0, 2, 0, 0, 50, 2, 1);
  one_job.send(0, 3, 0, 0, 50, 1, 1);
  const Timeline timeline = replay(one_job, cost);
  for (const TimelineEntry& entry : timeline.entries) EXPECT_DOUBLE_EQ(entry.start, 3);
}

TEST(Simulator, UnpacksWhenAllReceivesHaveArrived) {
  // Into 0: 100 bytes by NVLink at 1 s, 50 by NIC at 5 s; one job for both, 150 / 50 = 3 s.
  CostModel cost = free_cost();
  cost.memory_rate = 50;
  PlanWriter writer(4, 1);
  writer.send(1, 0, 0, 0, 100, 1, 2);
  writer.send(2, 0, 0, 0, 50, 1, 2);
  EXPECT_DOUBLE_EQ(replay(writer, cost).rank_end[0], 8);
}

TEST(Simulator, JobsOfAGpuShareItsMemory) {
  // Two lanes pack 100 each from t = 1 at 25 each: ready at 5. Each then flows by a NIC of its
  // own... both of GPU 0's: 5 each, 20 s.
  CostModel cost = free_cost();
  cost.memory_rate = 50;
  cost.copy_start = 1;
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100, 2, 1);
  writer.send(0, 2, 1, 0, 100, 2, 1);
  const Timeline timeline = replay(writer, cost);
  EXPECT_DOUBLE_EQ(timeline.entries[0].start, 5);
  EXPECT_DOUBLE_EQ(timeline.entries[1].start, 5);
  EXPECT_DOUBLE_EQ(timeline.refit_s, 25);
}

TEST(Simulator, FreeMemoryStillPaysTheLaunch) {
  CostModel cost = free_cost();
  cost.copy_start = 1;
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100, 2, 2);
  EXPECT_DOUBLE_EQ(replay(writer, cost).refit_s, 1 + 10 + 1);
}

TEST(Simulator, LocalCopiesPayNoStartUpOfALane) {
  // 1 + 100 / 50, next to a transfer of 5 + 10 in the same step.
  CostModel cost = free_cost();
  cost.memory_rate = 50;
  cost.copy_start = 1;
  cost.net.step_start = 5;
  PlanWriter alone(4, 1);
  alone.send(0, 0, 0, 0, 100);
  const Timeline copy = replay(alone, cost);
  EXPECT_DOUBLE_EQ(copy.refit_s, 3);
  ASSERT_EQ(copy.entries.size(), 1u);
  EXPECT_EQ(copy.entries[0], (TimelineEntry{0, 0, 0, 0, 100, 0, 1, 3}));
  PlanWriter with_transfer(4, 1);
  with_transfer.send(0, 0, 0, 0, 100);
  with_transfer.send(0, 2, 0, 0, 100);
  EXPECT_DOUBLE_EQ(replay(with_transfer, cost).refit_s, 15);
}

TEST(Simulator, WaitsJoinChannels) {
  // Lane 1 of rank 2 forwards by NVLink what lane 0 has received at 10 s.
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100);
  writer.send(2, 3, 1, 0, 100);
  writer.wait(2, 1, 0, 0, 0);
  EXPECT_DOUBLE_EQ(replay(writer, free_cost()).refit_s, 11);
}

TEST(Simulator, StepWithoutMessagesPassesWaitsOn) {
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100);
  writer.wait(2, 1, 0, 0, 0);  // nothing but a wait
  writer.wait(2, 1, 1, 1, 0);
  writer.send(2, 3, 1, 1, 100);
  EXPECT_DOUBLE_EQ(replay(writer, free_cost()).refit_s, 11);
}

TEST(Simulator, RelayByChunks) {
  // 0 -> 2 -> 4 -> 6 over NICs, n chunks of 10 bytes: the last one leaves 0 after n s, and takes 1
  // s for each of the 2 hops that follow.
  constexpr int32_t kChunks = 7;
  PlanWriter writer(8, 3);
  for (int32_t hop = 0; hop < 3; ++hop) {
    for (int32_t chunk = 0; chunk < kChunks; ++chunk) {
      writer.send(2 * hop, 2 * hop + 2, hop, chunk, 10);
      if (hop > 0) writer.wait(2 * hop, hop, chunk, hop - 1, chunk);
    }
  }
  EXPECT_DOUBLE_EQ(replay(writer, free_cost(), {}, 4).refit_s, kChunks + 2);

  // With 0.25 s of start-up a step, hidden by nothing: each chunk takes 1.25 s on each lane.
  CostModel cost = free_cost();
  cost.net.step_start = 0.25;
  EXPECT_DOUBLE_EQ(replay(writer, cost, {}, 4).refit_s, 1.25 * (kChunks + 2));
}

TEST(Simulator, TransferWaitsForBothEnds) {
  // Rank 2 receives from 3 by NVLink (5 s), and only then reaches the step in which 0 has been
  // sending since t = 0.
  PlanWriter writer(4, 1);
  writer.send(3, 2, 0, 0, 500);
  writer.send(0, 2, 0, 1, 100);
  const Timeline timeline = replay(writer, free_cost());
  ASSERT_EQ(timeline.entries.size(), 2u);
  EXPECT_EQ(timeline.entries[1], (TimelineEntry{0, 2, 0, 1, 100, 5, 5, 15}));
  EXPECT_DOUBLE_EQ(timeline.rank_end[0], 15);
}

TEST(Simulator, SendsAreNotEager) {
  // 1's next step begins when 0, late by a local copy of 4 s, has taken what 1 sends.
  CostModel cost = free_cost();
  cost.memory_rate = 50;
  PlanWriter writer(4, 1);
  writer.send(0, 0, 0, 0, 200);
  writer.send(1, 0, 0, 1, 100);  // 4..5
  writer.send(1, 3, 0, 2, 100);  // 5..15
  EXPECT_DOUBLE_EQ(replay(writer, cost).refit_s, 15);
}

TEST(Simulator, MessagesUseAllNicsOfAGpu) {
  SmallCluster cluster;
  cluster.nics_per_gpu = 2;
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100);
  EXPECT_DOUBLE_EQ(replay(writer, free_cost(), cluster).refit_s, 5) << "50 bytes on each";
  EXPECT_DOUBLE_EQ(replay(writer, free_cost()).refit_s, 10) << "one NIC";
  writer.send(0, 2, 1, 0, 100);
  EXPECT_DOUBLE_EQ(replay(writer, free_cost(), cluster).refit_s, 10);

  // Half as fast, one of the NICs holds up its parts: 2 x 50 bytes at 5 bytes/s.
  Fabric fabric = cluster.make(2);
  fabric.links[static_cast<size_t>(fabric.nics[1].out)].rate = 5;
  const Timeline timeline = simulate(writer.write(), fabric, free_cost());
  EXPECT_DOUBLE_EQ(timeline.refit_s, 20);
  for (const int32_t nic : fabric.gpus[0].nics)
    EXPECT_DOUBLE_EQ(
        timeline.link_bytes[static_cast<size_t>(fabric.nics[static_cast<size_t>(nic)].out)], 100);
}

// 4 bytes/s for a message, not for each part of it.
TEST(Simulator, NicsShareTheCapOfAMessage) {
  SmallCluster cluster;
  cluster.nics_per_gpu = 2;
  CostModel cost = free_cost();
  cost.net.flow_rate = 4;
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  EXPECT_DOUBLE_EQ(replay(writer, cost, cluster).refit_s, 25);
}

TEST(Simulator, RanksOfOneGpuExchangeThroughItsMemory) {
  CostModel cost = free_cost();
  cost.memory_rate = 50;
  PlanWriter writer(4, 1);
  writer.send(0, 1, 0, 0, 100);
  Plan plan = writer.write();
  plan.ranks[1].gpu = 0;
  EXPECT_DOUBLE_EQ(simulate(plan, SmallCluster{}.make(2), cost).refit_s, 2);
  cost.memory_rate = 0;
  EXPECT_DOUBLE_EQ(simulate(plan, SmallCluster{}.make(2), cost).refit_s, 0);
}

TEST(Simulator, NoBytesNoTime) {
  CostModel cost = free_cost();
  cost.memory_rate = 50;
  cost.net.step_start = 1;
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 0, 2, 2);
  writer.send(0, 0, 0, 1, 0);
  EXPECT_DOUBLE_EQ(replay(writer, cost).refit_s, 1);
}

}  // namespace
}  // namespace refit
