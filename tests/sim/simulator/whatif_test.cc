#include "sim/simulator/whatif.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/error.h"
#include "tests/refused.h"
#include "tests/sim/simulator/small.h"

// GPUs 0, 1 are node 0, GPUs 2, 3 node 1; NVLink 100 bytes/s, NICs 10 bytes/s.

namespace refit {
namespace {

/// The links that the change gives the rate.
std::set<std::string> changed(const Fabric& before, const std::string& change, double rate) {
  Fabric after = before;
  change_fabric(after, change);
  std::set<std::string> names;
  for (size_t link = 0; link < after.links.size(); ++link) {
    if (after.links[link].rate == before.links[link].rate) continue;
    EXPECT_EQ(after.links[link].rate, rate) << change;
    names.insert(after.links[link].name);
  }
  return names;
}

TEST(ChangeFabric, ReachesWhatItNames) {
  const Fabric fabric = SmallCluster{}.make(2);
  using Names = std::set<std::string>;
  EXPECT_EQ(changed(fabric, "nic=80bps", 10), Names{}) << "10 bytes/s already";
  EXPECT_EQ(changed(fabric, "nic=20B/s", 20).size(), 8u);
  EXPECT_EQ(changed(fabric, "nvlink=200B/s", 200).size(), 8u);
  EXPECT_EQ(changed(fabric, "nodes[1].nic=5B/s", 5),
            (Names{"n1.gpu0.nic0.in", "n1.gpu0.nic0.out", "n1.gpu1.nic0.in", "n1.gpu1.nic0.out"}));
  EXPECT_EQ(changed(fabric, "nodes[1].nic[0]=down", 0),
            (Names{"n1.gpu0.nic0.in", "n1.gpu0.nic0.out"}));
  EXPECT_EQ(changed(fabric, "nodes[0].nvlink[1]=50B/s", 50), (Names{"n0.gpu1.in", "n0.gpu1.out"}));
  EXPECT_EQ(changed(fabric, "nodes[0].nvlink=50B/s", 50).size(), 4u);
}

TEST(ChangeFabric, Spine) {
  const std::string text =
      "name: f\ndefault_cost: nominal\nnode: {gpus: 2, nics: 2, nic: 10GB/s, nic_latency: 1us}\n"
      "network: {kind: rail-optimized, oversubscription: 2}\n";
  const Fabric fabric = make_fabric({text, "f"}, 4);
  EXPECT_EQ(changed(fabric, "spine=7GB/s", 7e9),
            (std::set<std::string>{"leaf0.down", "leaf0.up", "leaf1.down", "leaf1.up"}));
  Fabric copy = fabric;
  EXPECT_EQ(error_of([&] { change_fabric(copy, "nvlink=1GB/s"); }),
            "--set nvlink=1GB/s: found no such link, expected a link of fabric f");
  EXPECT_EQ(error_of([&] { change_fabric(copy, "nodes[0].nvlink[1]=1GB/s"); }),
            "--set nodes[0].nvlink[1]=1GB/s: found no such link, expected a link of fabric f");
  EXPECT_EQ(copy, fabric);
}

TEST(ChangeFabric, LaterChangesWin) {
  Fabric fabric = SmallCluster{}.make(1);
  change_fabric(fabric, "nodes[0].nic[1]=down");
  change_fabric(fabric, "nic=20B/s");
  EXPECT_EQ(fabric.links[static_cast<size_t>(fabric.nics[1].out)].rate, 20);
}

TEST(ChangeFabric, RefusesWhatItCannotRead) {
  Fabric fabric = SmallCluster{}.make(2);
  const Fabric before = fabric;
  for (const char* change : {"",
                             "nic",
                             "=20B/s",
                             "nic=",
                             "nic=20",
                             "nic=Down",
                             "nic=-1B/s",
                             "nic=0B/s",
                             "nic =20B/s",
                             "nics=20B/s",
                             "nic[0]=20B/s",
                             "spine[0]=20B/s",
                             "spine=20B/s",
                             "node[0].nic=20B/s",
                             "nodes=down",
                             "nodes[0]=down",
                             "nodes[0]nic=down",
                             "nodes[2].nic=down",
                             "nodes[-1].nic=down",
                             "nodes[x].nic=down",
                             "nodes[].nic=down",
                             "nodes[0.nic=down",
                             "nodes[0].=down",
                             "nodes[0].spine=down",
                             "nodes[0].nic[2]=down",
                             "nodes[0].nic[=down",
                             "nodes[0].nic[0]x=down",
                             "nodes[0].nics=down",
                             "nodes[0].nic[0].in=down",
                             "nodes[0].nvlink[2]=20B/s",
                             "nic=20B/s,nvlink=20B/s"}) {
    EXPECT_THROW(change_fabric(fabric, change), Error) << change;
  }
  EXPECT_EQ(fabric, before);
  EXPECT_EQ(error_of([&] { change_fabric(fabric, "nodes[0].nic[2]=down"); }),
            "--set nodes[0].nic[2]=down: found \"2\", expected an integer from 0 to 1");
}

TEST(Down, TransferThatNeedsTheLinkIsNamed) {
  PlanWriter writer(4, 2);
  writer.send(0, 1, 0, 0, 100);
  writer.send(1, 2, 1, 7, 100);
  Fabric fabric = SmallCluster{}.make(2);
  change_fabric(fabric, "nodes[1].nic[0]=down");
  EXPECT_EQ(error_of([&] { simulate(writer.write(), fabric, free_cost()); }, ErrorKind::kWork),
            "rank 1 to 2, channel 1, step 7: needs link n1.gpu0.nic0.in, which is down");
}

TEST(Down, OtherTransfersDoNotMind) {
  PlanWriter writer(4, 1);
  writer.send(0, 3, 0, 0, 100);
  Fabric fabric = SmallCluster{}.make(2);
  change_fabric(fabric, "nodes[1].nic[0]=down");
  const Timeline timeline = simulate(writer.write(), fabric, free_cost());
  EXPECT_DOUBLE_EQ(timeline.refit_s, 10);
  EXPECT_EQ(fabric.links[static_cast<size_t>(timeline.bottleneck)].name, "n0.gpu0.nic0.out");
}

TEST(Stragglers, Parse) {
  EXPECT_EQ(parse_straggler("rank=17,x=0.5"), (Straggler{17, 0.5}));
  EXPECT_EQ(parse_straggler("rank=0,x=1"), (Straggler{0, 1}));
  for (const char* text :
       {"", "rank=17", "x=0.5", "x=0.5,rank=17", "rank=17,x=", "rank=17,x=0", "rank=17,x=1.5",
        "rank=17,x=-1", "rank=17,x=nan", "rank=17,x=0.5,", "rank=17,x=0.5x", "rank=,x=0.5",
        "rank=-1,x=0.5", "rank=1.5,x=0.5", "rank=99999999999,x=0.5", "rank=17;x=0.5"}) {
    EXPECT_THROW(parse_straggler(text), Error) << text;
  }
}

TEST(Stragglers, LinksGpuAndMemoryAreSlower) {
  // Alone over the NIC: 100 bytes at 10 x 0.5, at either end; by NVLink 100 x 0.5.
  const Fabric fabric = SmallCluster{}.make(2);
  const auto refit_s = [&](int32_t from, int32_t to, const CostModel& cost, int32_t slow) {
    PlanWriter writer(4, 1);
    writer.send(from, to, 0, 0, 100);
    return simulate(writer.write(), fabric, cost, {.stragglers = {{slow, 0.5}}}).refit_s;
  };
  EXPECT_DOUBLE_EQ(refit_s(0, 2, free_cost(), 0), 20);
  EXPECT_DOUBLE_EQ(refit_s(0, 2, free_cost(), 2), 20);
  EXPECT_DOUBLE_EQ(refit_s(0, 2, free_cost(), 1), 10) << "another rank";
  EXPECT_DOUBLE_EQ(refit_s(0, 1, free_cost(), 1), 2);
  // A GPU that sends 5 at most sends 2.5. A copy at 50 x 0.5.
  CostModel cost = free_cost();
  cost.gpu_rate = 5;
  cost.memory_rate = 50;
  EXPECT_DOUBLE_EQ(refit_s(0, 1, cost, 0), 40);
  EXPECT_DOUBLE_EQ(refit_s(0, 1, cost, 1), 40);
  EXPECT_DOUBLE_EQ(refit_s(0, 0, cost, 0), 4);
}

TEST(Stragglers, TwoAtOnce) {
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  const Fabric fabric = SmallCluster{}.make(2);
  const auto simulate_with = [&](std::vector<Straggler> stragglers) {
    return simulate(writer.write(), fabric, free_cost(), {.stragglers = std::move(stragglers)})
        .refit_s;
  };
  EXPECT_DOUBLE_EQ(simulate_with({{0, 0.5}, {2, 0.25}}), 40);
  EXPECT_EQ(error_of([&] {
              simulate_with({{0, 0.5}, {0, 0.25}});
            }),
            "straggler, rank 0: found it more than once, expected it once");
  EXPECT_EQ(error_of([&] { simulate_with({{4, 0.5}}); }), "straggler: found rank 4, expected 0..3");
  EXPECT_EQ(error_of([&] {
              simulate_with({{0, 0}});
            }),
            "straggler, rank 0: found speed 0, expected above 0, at most 1");
}

}  // namespace
}  // namespace refit
