#include "sim/search/entry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace refit {
namespace {

/// Ranks on so many nodes of four GPUs with NICs of 10 GB/s and NVLink of 100 GB/s, all of them or
/// those named.
Problem place(const std::string& network, int32_t nodes, std::vector<int32_t> gpus = {}) {
  Problem problem;
  problem.fabric = make_fabric({"name: f\ndefault_cost: nominal\n"
                                "node: {gpus: 4, nvlink: 100GB/s, nvlink_latency: 1us, nics: 4, "
                                "nic: 10GB/s, nic_latency: 1us}\n"
                                "domain: {nodes: 1}\nnetwork: " +
                                    network + "\n",
                                "f.yaml"},
                               nodes);
  if (gpus.empty()) {
    gpus.resize(problem.fabric.gpus.size());
    std::iota(gpus.begin(), gpus.end(), 0);
  }
  problem.gpu_of_rank = gpus;
  problem.cost = parse_cost(load_cost_source("nominal"));
  return problem;
}

constexpr const char* kRailOnly = "{kind: rail-only}";
constexpr int64_t kBytes = 1'000'000'000;  // 0.1 s of a NIC, 0.01 s of NVLink

std::string text(const Entry& entry) {
  std::string found = entry.feeder < 0 ? "" : std::to_string(entry.feeder) + " > ";
  found += std::to_string(entry.from) + " > " + std::to_string(entry.to);
  return found + (entry.staged ? " >" : "");
}

TEST(Entry, NeedersBeforeRelays) {
  const Problem problem = place(kRailOnly, 2);
  LinkLoad load(problem);
  // Rank 1 reaches rank 5 of the domain, which then serves 6.
  EXPECT_EQ(text(find_entry(load, {1}, {}, {5, 6}, 1, kBytes, {})), "1 > 5");
  const Entry one = find_entry(load, {1}, {}, {6}, 1, kBytes, {});
  EXPECT_EQ(text(one), "1 > 5 >");
  EXPECT_DOUBLE_EQ(one.peak, 0.1);
}

TEST(Entry, RelaysBesideHolders) {
  const Problem problem = place(kRailOnly, 2);
  LinkLoad load(problem);
  load.add(1, 5, kBytes);
  EXPECT_EQ(text(find_entry(load, {1}, {}, {6}, 1, kBytes, {})), "1 > 5 >") << "not asked for";
  // Rail 1 would have carried 0.2 s; by rank 2 beside the holder, on the needer's rail, 0.1 s.
  const Entry beside = find_entry(load, {1}, {}, {6}, 1, kBytes, {.track = 0.15, .feed = true});
  EXPECT_EQ(text(beside), "1 > 2 > 6");
  EXPECT_DOUBLE_EQ(beside.peak, 0.1);
  // With rail 2 as full by relays on both sides.
  load.add(2, 6, kBytes);
  EXPECT_EQ(text(find_entry(load, {1}, {}, {6}, 1, kBytes, {.track = 0.15, .feed = true})),
            "1 > 0 > 4 >");
  // Two holders: the other's rail is free, and there is no need for that.
  EXPECT_EQ(text(find_entry(load, {1, 3}, {}, {6}, 1, kBytes, {.track = 0.15, .feed = true})),
            "3 > 7 >");
}

TEST(Entry, Feeders) {
  const Problem problem = place("{kind: rail-optimized, oversubscription: 1}", 2);
  LinkLoad load(problem);
  load.add(1, 5, kBytes);
  load.add(0, 4, kBytes / 2);
  load.add(2, 6, kBytes / 4);
  // Of the ranks beside the holder 1 the one that has sent most to 6 and stays on track.
  EXPECT_EQ(text(find_feeder(load, {1}, 6, kBytes / 4, 0.2)), "1 > 2 > 6");
  // Rank 6 would take in 0.125 s: none is on track, and all are as late.
  const Entry late = find_feeder(load, {1}, 6, kBytes, 0.1);
  EXPECT_EQ(late.feeder, 1);
  EXPECT_DOUBLE_EQ(late.peak, 0.125);
  EXPECT_EQ(find_feeder(load, {0, 1, 2, 3}, 6, kBytes, 1).to, -1) << "all are holders";
}

// Also where there is a path: the NIC of rank 6 has enough to do. Of the others the one on the
// holder's rail.
TEST(Entry, RelaysPastASlowNic) {
  Problem problem = place("{kind: flat}", 2);
  problem.fabric.links[static_cast<size_t>(problem.fabric.nics[6].in)].rate = 1e9;
  LinkLoad load(problem);
  const Entry past = find_entry(load, {1}, {}, {6}, 1, kBytes, {.track = 0.15});
  EXPECT_EQ(text(past), "1 > 5 >");
  EXPECT_DOUBLE_EQ(past.peak, 0.1);
  // Where all are good enough a needer comes before a relay, and a pair in use before others.
  EXPECT_EQ(text(find_entry(load, {0}, {}, {6}, 1, kBytes, {.track = 2})), "0 > 4 >");
  EXPECT_EQ(text(find_entry(load, {2}, {}, {6}, 1, kBytes, {.track = 2})), "2 > 6");
  load.add(3, 7, kBytes / 4);
  EXPECT_EQ(text(find_entry(load, {1, 3}, {}, {6}, 1, kBytes, {.track = 0.15})), "3 > 7 >");
}

TEST(Entry, PassersAreSources) {
  const Problem problem = place(kRailOnly, 3);
  LinkLoad load(problem);
  load.add(1, 5, kBytes);
  // Rank 5 has been brought it and passes it on to 9; nothing is beside a passer.
  EXPECT_EQ(text(find_entry(load, {1}, {5}, {9}, 2, kBytes, {})), "5 > 9");
  EXPECT_EQ(text(find_entry(load, {1}, {5}, {10}, 2, kBytes, {})), "5 > 9 >");
}

TEST(Entry, NoWayIn) {
  // Rank 0 on rail 0 and rank 1 on rail 1 of another node, nobody beside them.
  const Problem problem = place(kRailOnly, 2, {0, 5});
  LinkLoad load(problem);
  const Entry none = find_entry(load, {0}, {}, {1}, 1, kBytes, {});
  EXPECT_EQ(none.to, -1);
  EXPECT_TRUE(std::isinf(none.peak));
}

// Four NICs of 10 GB/s share a message.
TEST(LinkLoad, SharesOutOverTheNicsOfAGpu) {
  Problem problem;
  problem.fabric = make_fabric({"name: f\ndefault_cost: nominal\n"
                                "node: {gpus: 1, nics: 4, nic: 10GB/s, nic_latency: 1us}\n"
                                "network: {kind: flat}\n",
                                "f.yaml"},
                               2);
  problem.gpu_of_rank = {0, 1};
  problem.cost = parse_cost(load_cost_source("nominal"));
  LinkLoad load(problem);
  EXPECT_DOUBLE_EQ(load.peak_with(0, 1, kBytes), 0.025);
  load.add(0, 1, kBytes);
  EXPECT_DOUBLE_EQ(load.peak(), 0.025);
  problem.fabric.links[static_cast<size_t>(problem.fabric.nics[2].out)].rate = 5e9;
  EXPECT_DOUBLE_EQ(LinkLoad(problem).peak_with(0, 1, kBytes), 0.05) << "the slowest part";
}

}  // namespace
}  // namespace refit
