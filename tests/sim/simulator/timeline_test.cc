#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/document.h"
#include "base/error.h"
#include "sim/simulator/trace.h"
#include "sim/simulator/usage.h"
#include "tests/sim/simulator/random_steps.h"

namespace refit {
namespace {

TEST(Timeline, SameInputSameBits) {
  const Plan plan = random_steps(1, 12);
  const Fabric fabric = SmallCluster{.nvlink_latency = 0.001, .nic_latency = 0.002}.make(6);
  const Timeline first = simulate(plan, fabric, full_cost(), {.entries = true});
  EXPECT_EQ(first, simulate(plan, fabric, full_cost(), {.entries = true}));
  EXPECT_GT(first.events, 1000);
}

TEST(Timeline, EntriesOnlyWhenAskedFor) {
  const Plan plan = random_steps(2, 4);
  const Timeline without = simulate(plan, SmallCluster{}.make(2), full_cost());
  EXPECT_TRUE(without.entries.empty());
  Timeline with = simulate(plan, SmallCluster{}.make(2), full_cost(), {.entries = true});
  with.entries.clear();
  EXPECT_EQ(with, without);
}

TEST(Timeline, LawsOnRandomPlans) {
  for (uint64_t seed = 10; seed < 20; ++seed) {
    const int32_t ranks = 8;
    const Plan plan = random_steps(seed, ranks);
    const Fabric fabric = SmallCluster{}.make(4);
    const CostModel cost = full_cost();
    const Timeline timeline = simulate(plan, fabric, cost, {.entries = true});
    const std::vector<double> rates = link_rates(fabric, cost);

    std::vector<double> bytes(fabric.links.size(), 0);
    std::vector<double> last(plan.ranks.size(), 0);
    for (const TimelineEntry& entry : timeline.entries) {
      EXPECT_LE(entry.posted, entry.start);
      EXPECT_LT(entry.start, entry.end);
      for (const int32_t rank : {entry.from, entry.to}) {
        last[static_cast<size_t>(rank)] = std::max(last[static_cast<size_t>(rank)], entry.end);
      }
      for (const int32_t link : route(fabric, entry.from, entry.to)) {
        bytes[static_cast<size_t>(link)] += static_cast<double>(entry.bytes);
      }
    }
    EXPECT_EQ(bytes, timeline.link_bytes) << "nothing is lost on the way";
    for (size_t link = 0; link < bytes.size(); ++link) {
      EXPECT_GE(timeline.link_busy_s[link] * (1 + 1e-9), bytes[link] / rates[link]);
      EXPECT_LE(timeline.link_busy_s[link], timeline.refit_s);
      EXPECT_LE(bytes[link] / rates[link] / timeline.refit_s, timeline.bottleneck_use);
    }
    for (size_t rank = 0; rank < last.size(); ++rank)
      EXPECT_LE(last[rank], timeline.rank_end[rank]);
    EXPECT_EQ(timeline.refit_s, *std::ranges::max_element(timeline.rank_end));
    EXPECT_NEAR(timeline.wire_s + timeline.staging_s + timeline.launch_s + timeline.wait_s,
                timeline.refit_s, 1e-9 * timeline.refit_s);
    EXPECT_TRUE(std::ranges::is_sorted(timeline.entries, {}, &TimelineEntry::start));
  }
}

TEST(Timeline, LinksAndBottleneck) {
  // NIC out of GPU 0: 100 bytes from 0 to 15 s next to 50 others of it; NIC in of GPU 3: 100 bytes.
  // 150 bytes / 10 = 15 s of 15.
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 50);
  writer.send(0, 3, 0, 0, 100);
  const Fabric fabric = SmallCluster{}.make(2);
  const Timeline timeline = simulate(writer.write(), fabric, free_cost());
  const auto out = static_cast<size_t>(fabric.nics[0].out);
  const auto in = static_cast<size_t>(fabric.nics[2].in);
  EXPECT_EQ(timeline.link_bytes[out], 150);
  EXPECT_EQ(timeline.link_bytes[in], 50);
  EXPECT_DOUBLE_EQ(timeline.link_busy_s[out], 15);
  EXPECT_DOUBLE_EQ(timeline.link_busy_s[in], 10);
  EXPECT_EQ(timeline.bottleneck, fabric.nics[0].out);
  EXPECT_DOUBLE_EQ(timeline.bottleneck_use, 1);
}

TEST(Timeline, BusyTimesAndGapsOfALinkTakeTurns) {
  for (const int32_t nics_per_gpu : {1, 2}) {
    const Plan plan = random_steps(3, 8);
    SmallCluster cluster;
    cluster.nics_per_gpu = nics_per_gpu;
    const Replay replayed = replay(plan, cluster.make(4), full_cost());
    for (const LinkUsage& use : link_uses(replayed, 1)) {
      ASSERT_EQ(use.busy.size(), use.gaps.size() + 1);
      EXPECT_EQ(use.busy.front().from, use.first);
      EXPECT_EQ(use.busy.back().to, use.last);
      double bytes = 0, seconds = 0;
      int64_t transfers = 0;
      for (size_t n = 0; n < use.busy.size(); ++n) {
        bytes += use.busy[n].bytes;
        seconds += use.busy[n].to - use.busy[n].from;
        transfers += use.busy[n].transfers;
        if (n == use.gaps.size()) break;
        EXPECT_EQ(use.gaps[n].from, use.busy[n].to);
        EXPECT_EQ(use.gaps[n].to, use.busy[n + 1].from);
      }
      EXPECT_DOUBLE_EQ(bytes, replayed.link_bytes[static_cast<size_t>(use.link)]);
      EXPECT_NEAR(seconds, replayed.link_busy_s[static_cast<size_t>(use.link)], 1e-9 * use.last);
      EXPECT_EQ(transfers, use.transfers);
    }
  }
}

TEST(Timeline, SplitOfTheLastRank) {
  // Rank 2 ends last. 0..2: start-up (launch), while rank 0 packs till 3: 2..3 wait. 3..13
  // wire. 13..14 launch of unpacking, 14..16 unpacking.
  CostModel cost = free_cost();
  cost.memory_rate = 50;
  cost.copy_start = 1;
  cost.net.step_start = 2;
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100, 2, 2);
  const Timeline timeline = simulate(writer.write(), SmallCluster{}.make(2), cost);
  EXPECT_DOUBLE_EQ(timeline.refit_s, 16);
  EXPECT_DOUBLE_EQ(timeline.launch_s, 2 + 1);
  EXPECT_DOUBLE_EQ(timeline.wait_s, 1);
  EXPECT_DOUBLE_EQ(timeline.wire_s, 10);
  EXPECT_DOUBLE_EQ(timeline.staging_s, 2);
}

TEST(Error, BoundsEveryTimeWhereMoreBytesNeverHelp) {
  // Everything enters by one NIC: a message more or less only delays or hastens the others. Sizes
  // between 1000 and 2000 bytes, 60 of them at once: many end within 1 % of each other.
  constexpr double kError = 0.01;
  std::mt19937_64 random(3);
  PlanWriter writer(64, 1);
  for (int32_t from = 4; from < 64; ++from)
    writer.send(from, 0, 0, 0, 1000 + static_cast<int64_t>(random() % 1000));
  const Plan plan = writer.write();
  const Fabric fabric = SmallCluster{}.make(32);
  const Timeline exact = simulate(plan, fabric, free_cost());
  const Timeline batched = simulate(plan, fabric, free_cost(), {.error = kError});
  std::set<double> ends;
  for (size_t rank = 0; rank < exact.rank_end.size(); ++rank) {
    EXPECT_NEAR(batched.rank_end[rank], exact.rank_end[rank],
                kError * exact.rank_end[rank] * (1 + 1e-9));
    ends.insert(batched.rank_end[rank]);
  }
  EXPECT_LT(ends.size(), 60u) << "nothing was batched";
  EXPECT_EQ(batched.link_bytes, exact.link_bytes);
}

TEST(Error, BoundsARelayAndItsStartUps) {
  // As above along a chain: chunk after chunk, with start-ups, which have no error.
  PlanWriter writer(8, 3);
  for (int32_t hop = 0; hop < 3; ++hop) {
    for (int32_t chunk = 0; chunk < 9; ++chunk) {
      writer.send(2 * hop, 2 * hop + 2, hop, chunk, 100 + 7 * chunk);
      if (hop > 0) writer.wait(2 * hop, hop, chunk, hop - 1, chunk);
    }
  }
  CostModel cost = free_cost();
  cost.net.step_start = 0.25;
  const Plan plan = writer.write();
  const Fabric fabric = SmallCluster{}.make(4);
  const double exact = simulate(plan, fabric, cost).refit_s;
  const double batched = simulate(plan, fabric, cost, {.error = 0.02}).refit_s;
  EXPECT_NEAR(batched, exact, 0.02 * exact);
}

TEST(Error, OutOfRange) {
  const Plan plan = random_steps(4, 4);
  const Fabric fabric = SmallCluster{}.make(2);
  for (const double error : {-0.001, 1.0, 2.0, std::nan("")})
    EXPECT_THROW(simulate(plan, fabric, full_cost(), {.error = error}), Error) << error;
}

TEST(Trace, HasEveryTransferAtBothRanks) {
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 3, 0, 0, 100);
  writer.send(1, 1, 1, 0, 10);
  Plan plan = writer.write();
  plan.channels[0].lane = Lane::kNet;
  plan.ranks[0].node = "n\"0\"\\";
  const Fabric fabric = SmallCluster{}.make(2);
  const std::string path = ::testing::TempDir() + "refit_trace_test.json";
  write_trace(plan, fabric, free_cost(), replay(plan, fabric, free_cost()), path);

  const Value trace = load_document(path);
  const Value& events = trace.at("traceEvents");
  int slices = 0;
  std::vector<int64_t> rows_of_0;
  for (size_t i = 0; i < events.size(); ++i) {
    const Value& event = events[i];
    const int64_t pid = event.at("pid").as_int(0, 4);
    if (event.at("ph").as_text() != "X" || pid == 4) continue;
    ++slices;
    const Value& args = event.at("args");
    if (pid == 0) {
      rows_of_0.push_back(event.at("tid").as_int(0, 100));
      EXPECT_EQ(event.at("ts").as_number(), 0);
      EXPECT_EQ(event.at("dur").as_number(), 20e6);
      EXPECT_EQ(args.at("bytes").as_int(0, 1000), 100);
      EXPECT_EQ(args.at("peer").as_int(0, 3), slices == 1 ? 2 : 3);
    }
    if (pid == 1) {
      EXPECT_EQ(event.at("name").as_text(), "copy");
    }
  }
  EXPECT_EQ(slices, 2 * 2 + 1);
  // They overlap: one in the channel's row, one in the next row of the channel.
  EXPECT_EQ(rows_of_0, (std::vector<int64_t>{0, kMaxChannels}));
}

TEST(Trace, HasARowForEveryLinkInUse) {
  // 100 over the NIC of 0, 0..10; it then waits for 3000 over NVLink, 0..30, and sends 50 more. The
  // NIC of 2 takes both. The fullest first: NVLink 30 of 35 s.
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 1, 1, 0, 3000);
  writer.send(0, 2, 0, 1, 50);
  writer.wait(0, 0, 1, 1, 0);
  const Plan plan = writer.write();
  const Fabric fabric = SmallCluster{}.make(2);
  const std::string path = ::testing::TempDir() + "refit_trace_links_test.json";
  write_trace(plan, fabric, free_cost(), replay(plan, fabric, free_cost()), path);

  const Value trace = load_document(path);
  const Value& events = trace.at("traceEvents");
  std::map<int64_t, std::string> names;
  std::vector<std::string> slices;
  for (size_t i = 0; i < events.size(); ++i) {
    const Value& event = events[i];
    if (event.at("pid").as_int(0, 4) != 4) continue;
    const int64_t row = event.at("tid").as_int(0, 100);
    if (event.at("name").as_text() == "thread_name")
      names[row] = event.at("args").at("name").as_text();
    if (event.at("ph").as_text() != "X") continue;
    EXPECT_EQ(event.at("args").at("use").as_number(), 1);
    slices.push_back(fmt::format("{} {}..{} s, {} bytes", names[row],
                                 event.at("ts").as_number() / 1e6,
                                 (event.at("ts").as_number() + event.at("dur").as_number()) / 1e6,
                                 event.at("args").at("bytes").as_int(0, 10000)));
  }
  EXPECT_EQ(slices,
            (std::vector<std::string>{
                "n0.gpu0.out 0..30 s, 3000 bytes", "n0.gpu1.in 0..30 s, 3000 bytes",
                "n0.gpu0.nic0.out 0..10 s, 100 bytes", "n0.gpu0.nic0.out 30..35 s, 50 bytes",
                "n1.gpu0.nic0.in 0..10 s, 100 bytes", "n1.gpu0.nic0.in 30..35 s, 50 bytes"}));
}

TEST(Trace, UnwritablePlaceIsAnError) {
  const Plan plan = PlanWriter(2, 1).write();
  const Fabric fabric = SmallCluster{}.make(1);
  EXPECT_THROW(write_trace(plan, fabric, free_cost(), replay(plan, fabric, free_cost()),
                           ::testing::TempDir() + "no/such/folder/t.json"),
               Error);
}

}  // namespace
}  // namespace refit
