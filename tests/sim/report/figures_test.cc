#include "sim/report/figures.h"

#include <gtest/gtest.h>

#include "tests/sim/simulator/small.h"

// GPUs 0, 1 are node 0, GPUs 2, 3 node 1; NVLink 100 bytes/s, NICs 10 bytes/s.

namespace refit {
namespace {

using Parts = std::vector<float>;

struct Replayed {
  Fabric fabric = SmallCluster{}.make(2);
  Plan plan;
  Replay replayed;
  Timeline timeline;

  explicit Replayed(const PlanWriter& writer)
      : plan(writer.write()),
        replayed(replay(plan, fabric, free_cost())),
        timeline(make_timeline(plan, replayed, free_cost(), /*entries=*/true)) {}

  Heat links(int32_t columns, int32_t rows) const {
    return link_activity(replayed, link_uses(replayed, timeline.refit_s), fabric, timeline.refit_s,
                         columns, rows);
  }
};

/// 0 -> 2 takes 10 s, then 0 -> 3 takes 30 s, on one channel: 40 s.
PlanWriter two_in_a_row() {
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 3, 0, 1, 300);
  return writer;
}

TEST(Figures, RankActivity) {
  const Replayed run(two_in_a_row());
  ASSERT_DOUBLE_EQ(run.timeline.refit_s, 40);
  // Four spans of 10 s. Rank 1 does nothing and has no row.
  const Heat four = rank_activity(run.plan, run.timeline, 4);
  EXPECT_EQ(four.rows.size(), 3U);
  EXPECT_EQ(four.rows[0].substr(0, 6), "rank 0");
  EXPECT_EQ(four.part, (Parts{1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1}));
  // Two spans of 20 s: rank 2 is active in half of the first, rank 3 in the other half.
  EXPECT_EQ(rank_activity(run.plan, run.timeline, 2).part, (Parts{1, 1, 0.5, 0, 0.5, 1}));
}

TEST(Figures, OverlappingTransfersCountOnce) {
  // Both share the NIC of GPU 0 until 10 s; the second ends at 15 s.
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 50);
  writer.send(0, 3, 0, 0, 100);
  const Replayed run(writer);
  const Heat heat = rank_activity(run.plan, run.timeline, 3);
  EXPECT_EQ(heat.part, (Parts{1, 1, 1, 1, 1, 0, 1, 1, 1}));
}

TEST(Figures, LinkActivityIsPartOfTheRate) {
  // 0 sends to 2 and 3 at once: its NIC is full for 20 s, theirs half full.
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 3, 0, 0, 100);
  const Replayed run(writer);
  const Heat heat = run.links(2, 10);
  EXPECT_EQ(heat.rows,
            (std::vector<std::string>{"n0.gpu0.nic0.out", "n1.gpu0.nic0.in", "n1.gpu1.nic0.in"}));
  EXPECT_EQ(heat.part, (Parts{1, 1, 0.5, 0.5, 0.5, 0.5}));
  EXPECT_EQ(run.links(2, 1).rows.size(), 1U);
}

TEST(Figures, LinkUsesAreSortedByUse) {
  const Replayed run(two_in_a_row());
  const std::vector<LinkUsage> loads = link_uses(run.replayed, run.timeline.refit_s);
  ASSERT_EQ(loads.size(), 3U);
  EXPECT_EQ(run.fabric.links[static_cast<size_t>(loads[0].link)].name, "n0.gpu0.nic0.out");
  EXPECT_DOUBLE_EQ(loads[0].use, 1);
  EXPECT_DOUBLE_EQ(loads[1].use, 0.75);
  EXPECT_DOUBLE_EQ(loads[1].bytes, 300);
  EXPECT_DOUBLE_EQ(loads[2].use, 0.25);
}

TEST(Figures, TrafficBetweenNodes) {
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  writer.send(1, 3, 0, 0, 30);
  writer.send(2, 3, 0, 1, 7);
  const Replayed run(writer);
  const Traffic traffic = node_traffic(run.plan, 10);
  EXPECT_EQ(traffic.names, (std::vector<std::string>{"n0", "n1"}));
  EXPECT_EQ(traffic.bytes, (std::vector<int64_t>{0, 130, 0, 7}));
  // Two nodes in one group.
  const Traffic grouped = node_traffic(run.plan, 1);
  EXPECT_EQ(grouped.names, (std::vector<std::string>{"n0..n1"}));
  EXPECT_EQ(grouped.bytes, (std::vector<int64_t>{137}));
}

TEST(Figures, NothingMoves) {
  const Replayed run(PlanWriter(4, 1));
  EXPECT_TRUE(rank_activity(run.plan, run.timeline, 4).rows.empty());
  EXPECT_TRUE(run.links(4, 4).rows.empty());
}

}  // namespace
}  // namespace refit
