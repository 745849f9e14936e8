#include "sim/simulator/critical.h"

#include <gtest/gtest.h>

#include "sim/simulator/sensitivity.h"
#include "sim/simulator/usage.h"
#include "tests/sim/simulator/random_steps.h"

// GPUs 0, 1 are node 0, GPUs 2, 3 node 1; NVLink 100 bytes/s, NICs 10 bytes/s.

namespace refit {
namespace {

Replay run(const Plan& plan, const CostModel& cost, int32_t nodes = 2) {
  return replay(plan, SmallCluster{}.make(nodes), cost, {}, /*holders=*/true);
}

CostModel starts(double step, double message) {
  CostModel cost = free_cost();
  cost.net.step_start = step;
  cost.net.message_start = message;
  return cost;
}

struct Expected {
  PartKind part;
  Cause cause;
  double from, to;
  int32_t rank;
};

void expect_chain(const Replay& replay, const std::vector<ChainPart>& chain,
                  const std::vector<Expected>& expected) {
  ASSERT_EQ(chain.size(), expected.size());
  for (size_t i = 0; i < chain.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(part_name(chain[i].part), part_name(expected[i].part));
    EXPECT_EQ(cause_name(chain[i].cause), cause_name(expected[i].cause));
    EXPECT_DOUBLE_EQ(chain[i].from, expected[i].from);
    EXPECT_DOUBLE_EQ(chain[i].to, expected[i].to);
    EXPECT_EQ(replay.graph.nodes[static_cast<size_t>(chain[i].node)].rank, expected[i].rank);
  }
}

/// 0 sends to 2, on another lane 2 then to 3.
Plan passed_on() {
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100);
  writer.send(2, 3, 1, 0, 100);
  writer.wait(2, 1, 0, 0, 0);
  return writer.write();
}

/// Everything that this rank sends comes from, and all that it receives goes to, its gen buffer.
void forward_from_gen(Plan& plan, int32_t rank) {
  for (Piece& piece : plan.programs[static_cast<size_t>(rank)].pieces) piece.place = Place::kGen;
}

TEST(Critical, OneTransfer) {
  // Start-up of the step 0..5, of the message ..6, 100 bytes at 10.
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  const Plan plan = writer.write();
  const Replay replay = run(plan, starts(5, 1));
  expect_chain(replay, critical_chain(plan, replay, last_node(replay)),
               {{PartKind::kStart, Cause::kBarrier, 0, 5, 0},
                {PartKind::kMessage, Cause::kFollows, 5, 6, 0},
                {PartKind::kWire, Cause::kFollows, 6, 16, 0}});
}

TEST(Critical, TheLaneRanTheStepBefore) {
  // 0..1 and 10 s of wire, twice.
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 3, 0, 1, 100);
  const Plan plan = writer.write();
  const Replay replay = run(plan, starts(1, 0));
  expect_chain(replay, critical_chain(plan, replay, last_node(replay, 3)),
               {{PartKind::kStart, Cause::kBarrier, 0, 1, 0},
                {PartKind::kMessage, Cause::kFollows, 1, 1, 0},
                {PartKind::kWire, Cause::kFollows, 1, 11, 0},
                {PartKind::kStart, Cause::kLane, 11, 12, 0},
                {PartKind::kMessage, Cause::kPeer, 12, 12, 3},
                {PartKind::kWire, Cause::kFollows, 12, 22, 3}});
}

TEST(Critical, AForwardWaitsForItsData) {
  // 2 gets 100 bytes in 10 s and forwards them by NVLink in 1 s. The receiver was ready at 0.
  Plan plan = passed_on();
  forward_from_gen(plan, 2);
  const Replay replay = run(plan, free_cost());
  expect_chain(replay, critical_chain(plan, replay, last_node(replay)),
               {{PartKind::kStart, Cause::kBarrier, 0, 0, 2},
                {PartKind::kMessage, Cause::kFollows, 0, 0, 2},
                {PartKind::kWire, Cause::kFollows, 0, 10, 2},
                {PartKind::kStart, Cause::kData, 10, 10, 2},
                {PartKind::kMessage, Cause::kFollows, 10, 10, 2},
                {PartKind::kWire, Cause::kFollows, 10, 11, 2}});
}

TEST(Critical, AWaitWithoutDataIsForASlot) {
  // What 2 sends is its own: it waits only for memory that the receive had used.
  const Plan plan = passed_on();
  const Replay replay = run(plan, free_cost());
  const std::vector<ChainPart> chain = critical_chain(plan, replay, last_node(replay));
  EXPECT_EQ(chain[3].cause, Cause::kSlot);
  EXPECT_EQ(chain[3].part, PartKind::kStart);
}

TEST(Critical, PackingCopyingAndUnpacking) {
  // 2 pieces at both ends: launch 1, 100 bytes at 50: packed at 3, on the wire until 13, launch and
  // unpacking until 16.
  CostModel cost = free_cost();
  cost.memory_rate = 50;
  cost.copy_start = 1;
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100, 2, 2);
  const Plan plan = writer.write();
  const Replay replay = run(plan, cost);
  expect_chain(replay, critical_chain(plan, replay, last_node(replay)),
               {{PartKind::kPack, Cause::kBarrier, 0, 3, 0},
                {PartKind::kMessage, Cause::kPeer, 3, 3, 2},
                {PartKind::kWire, Cause::kFollows, 3, 13, 2},
                {PartKind::kUnpack, Cause::kFollows, 13, 16, 2}});
  PlanWriter alone(4, 1);
  alone.send(1, 1, 0, 0, 100);
  const Plan copy = alone.write();
  const Replay copied = run(copy, cost);
  expect_chain(copied, critical_chain(copy, copied, last_node(copied)),
               {{PartKind::kCopy, Cause::kBarrier, 0, 3, 1}});
}

TEST(Critical, WhatHoldsTheRateAndWhatItWouldBeAlone) {
  // Both leave by the NIC of GPU 0 at 5 and end at 20; alone each takes 10.
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 3, 0, 0, 100);
  const Plan plan = writer.write();
  const Fabric fabric = SmallCluster{}.make(2);
  const Replay replay = run(plan, free_cost());
  for (int32_t t = 0; t < 2; ++t) {
    EXPECT_DOUBLE_EQ(alone_s(replay, t), 10);
    EXPECT_EQ(resource_name(replay.graph, fabric, replay.transfers[static_cast<size_t>(t)].holder),
              "n0.gpu0.nic0.out");
  }
}

TEST(Critical, TheHolderIsWhatHeldForLongest) {
  // 0 sends 100 to 2 and to 3, 1 sends 20 twice to 2, whose port gives 10 / 3 each for 6 s. Then 80
  // and 60 are left to 0, whose port gives 5 each for 12 s, and for 2 s more 20 run at 10.
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 3, 0, 0, 100);
  writer.send(1, 2, 0, 0, 20);
  writer.send(1, 2, 1, 0, 20);
  const Plan plan = writer.write();
  const Replay replay = run(plan, free_cost());
  EXPECT_DOUBLE_EQ(replay.transfers[0].end, 20);
  EXPECT_EQ(resource_name(replay.graph, SmallCluster{}.make(2), replay.transfers[0].holder),
            "n0.gpu0.nic0.out");
}

TEST(Critical, OwnCapHolds) {
  CostModel cost = free_cost();
  cost.net.flow_rate = 4;
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  const Plan plan = writer.write();
  const Replay replay = run(plan, cost);
  EXPECT_EQ(replay.transfers[0].holder, MaxMin::kOwnCap);
  EXPECT_DOUBLE_EQ(alone_s(replay, 0), 25);
}

TEST(Critical, NamesOfResources) {
  CostModel cost = free_cost();
  cost.gpu_rate = 3;
  cost.memory_rate = 9;
  PlanWriter writer(4, 1);
  writer.send(1, 2, 0, 0, 30);
  writer.send(1, 3, 0, 0, 30);  // the sender has 1.5 for each
  const Plan plan = writer.write();
  const Replay replay = run(plan, cost);
  const Fabric fabric = SmallCluster{}.make(2);
  EXPECT_EQ(resource_name(replay.graph, fabric, replay.transfers[0].holder), "n0.gpu1 as sender");
  EXPECT_EQ(resource_name(replay.graph, fabric, replay.graph.first_gpu + 4 + 2),
            "n1.gpu0 as receiver");
  EXPECT_EQ(resource_name(replay.graph, fabric, replay.graph.first_memory + 3),
            "memory of n1.gpu1");
}

TEST(Critical, RandomChainsAreWithoutGaps) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Plan plan = random_steps(seed, 8);
    const Replay replay = run(plan, full_cost(), 4);
    for (int32_t rank = -1; rank < 8; ++rank) {
      const int32_t node = last_node(replay, rank);
      const std::vector<ChainPart> chain = critical_chain(plan, replay, node);
      double now = 0;
      for (const ChainPart& part : chain) {
        EXPECT_NEAR(part.from, now, 1e-9 * (1 + now)) << seed << ' ' << rank;
        EXPECT_GE(part.to, part.from);
        now = part.to;
      }
      EXPECT_DOUBLE_EQ(now, replay.nodes[static_cast<size_t>(node)].end);
      EXPECT_EQ(chain.front().cause, Cause::kBarrier);
    }
  }
}

TEST(Critical, RandomTransfersTakeAtLeastAsLongAsAlone) {
  const Plan plan = random_steps(3, 8);
  const Replay replay = run(plan, full_cost(), 4);
  for (size_t t = 0; t < replay.transfers.size(); ++t) {
    const TransferTimes& times = replay.transfers[t];
    EXPECT_GE(times.end - times.start, alone_s(replay, static_cast<int32_t>(t)) * (1 - 1e-9));
  }
}

TEST(Usage, LinksBusyAndIdle) {
  // NIC of 0: busy 0..10, then its step waits for the one of channel 1, NVLink 0..30: idle until
  // 30.
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 1, 1, 0, 3000);
  writer.send(0, 2, 0, 1, 50);
  writer.wait(0, 0, 1, 1, 0);
  const Plan plan = writer.write();
  const Fabric fabric = SmallCluster{}.make(2);
  const Replay replay = run(plan, free_cost());
  const std::vector<LinkUsage> uses = link_uses(replay, 35);
  ASSERT_EQ(uses.size(), 4u);
  EXPECT_EQ(fabric.links[static_cast<size_t>(uses[0].link)].name, "n0.gpu0.out");
  EXPECT_DOUBLE_EQ(uses[0].use, 30.0 / 35);
  EXPECT_TRUE(uses[0].gaps.empty());
  const LinkUsage& nic = uses[2];
  EXPECT_EQ(fabric.links[static_cast<size_t>(nic.link)].name, "n0.gpu0.nic0.out");
  EXPECT_EQ(nic.transfers, 2);
  EXPECT_DOUBLE_EQ(nic.busy_s, 15);
  ASSERT_EQ(nic.gaps.size(), 1u);
  EXPECT_DOUBLE_EQ(nic.gaps[0].from, 10);
  EXPECT_DOUBLE_EQ(nic.gaps[0].to, 30);
  EXPECT_EQ(begin_of_transfer(plan, replay, nic.gaps[0].next).cause, Cause::kSlot);
}

TEST(Usage, RandomGapsAndBusyTimeFillTheSpan) {
  const Plan plan = random_steps(4, 12);
  const Replay replay = run(plan, full_cost(), 6);
  const double refit_s = make_timeline(plan, replay, full_cost()).refit_s;
  double previous = 2;
  for (const LinkUsage& use : link_uses(replay, refit_s)) {
    double idle = 0;
    for (const IdleGap& gap : use.gaps) idle += gap.seconds();
    EXPECT_NEAR(use.busy_s + idle, use.last - use.first, 1e-9 * use.last);
    EXPECT_LE(use.use, 1 + 1e-9);
    EXPECT_LE(use.use, previous);
    EXPECT_EQ(std::ssize(transfers_over(replay, use.link)), use.transfers);
    previous = use.use;
  }
}

TEST(Usage, RanksSplitTheRefitTime) {
  const Plan plan = random_steps(5, 8);
  const CostModel cost = full_cost();
  const Replay replay = run(plan, cost, 4);
  const Timeline timeline = make_timeline(plan, replay, cost);
  const std::vector<RankUsage> uses = rank_uses(replay, cost, 8, timeline.refit_s);
  int64_t in = 0, out = 0;
  for (size_t rank = 0; rank < 8; ++rank) {
    const TimeSplit& split = uses[rank].split;
    EXPECT_NEAR(split.wire_s + split.staging_s + split.launch_s + split.wait_s, timeline.refit_s,
                1e-9 * timeline.refit_s);
    EXPECT_DOUBLE_EQ(uses[rank].end, timeline.rank_end[rank]);
    in += uses[rank].bytes_in;
    out += uses[rank].bytes_out;
  }
  EXPECT_EQ(in, out);
  EXPECT_GT(in, 0);
}

TEST(Sensitivity, NamesWhatWouldHelpMostFirst) {
  // 5 of start-up, 10 of NIC: 15. NICs twice as fast: 10; no start-ups: 10. NVLink is not used.
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  const std::vector<Sensitivity> found =
      sensitivities(writer.write(), SmallCluster{}.make(2), starts(5, 0));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].change, "NICs twice as fast");
  EXPECT_DOUBLE_EQ(found[0].refit_s, 10);
  EXPECT_EQ(found[1].change, "no start-ups");
  EXPECT_DOUBLE_EQ(found[1].refit_s, 10);
  EXPECT_EQ(found[2].change, "NVLink twice as fast");
  EXPECT_DOUBLE_EQ(found[2].refit_s, 15);
}

}  // namespace
}  // namespace refit
