#include "sim/cost/bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "sim/cost/cost_model.h"
#include "tests/refused.h"
#include "tests/sim/fabric/fabrics.h"

namespace refit {
namespace {

using Ranks = std::vector<int32_t>;

constexpr int64_t kGB = 1'000'000'000;

Ranks range(int32_t first, int32_t last) {
  Ranks ranks(static_cast<size_t>(last - first));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

/// A demand of given classes on a fabric of nominal rates; rank r is on GPU r unless said
/// otherwise.
struct Case {
  Fabric fabric;
  Layout train, gen;
  Ranks gpu_of_rank;
  Demand demand;

  Case(Fabric made, const Ranks& train_ranks, const Ranks& gen_ranks) : fabric(std::move(made)) {
    train.ranks = train_ranks;
    gen.ranks = gen_ranks;
    gpu_of_rank = range(0, static_cast<int32_t>(fabric.gpus.size()));
  }

  void add(const Ranks& holders, const Ranks& needers, int64_t bytes) {
    DemandClass item;
    for (const Ranks& ranks : {holders, needers}) {
      auto at = std::find(demand.rank_sets.begin(), demand.rank_sets.end(), ranks);
      if (at == demand.rank_sets.end()) at = demand.rank_sets.insert(at, ranks);
      (item.holders < 0 ? item.holders : item.needers) =
          static_cast<int32_t>(at - demand.rank_sets.begin());
    }
    item.bytes = bytes;
    item.atoms = 1;
    demand.classes.push_back(item);
  }

  LowerBound full_bound() const {
    return lower_bound(demand, train, gen, fabric, gpu_of_rank, link_rates(fabric, CostModel()));
  }

  LowerBound bound() const {
    return cut_bound(demand, train, gen, fabric, gpu_of_rank, link_rates(fabric, CostModel()));
  }
};

Fabric make_named(const std::string& name, int32_t nodes) {
  return make_fabric(load_fabric_source(name), nodes);
}

// 64 GB in 8 parts, held twice, needed by all ranks of a node: 8 NICs x 50 GB/s bring each of them
// in once.
TEST(CutBound, NodeIngress) {
  Case c(make_named("dgx-h100", 3), range(0, 16), range(16, 24));
  for (int32_t part = 0; part < 8; ++part) c.add({part, part + 8}, range(16, 24), 8 * kGB);
  const LowerBound bound = c.bound();
  EXPECT_DOUBLE_EQ(bound.seconds, 64.0 / 400);
  EXPECT_EQ(bound.cut.kind, Cut::Kind::kNode);
  EXPECT_EQ(bound.cut.index, 2);
  EXPECT_TRUE(bound.cut.into);
  EXPECT_EQ(bound.cut.bytes, 64 * kGB);
  EXPECT_EQ(bound.reason, "ingress of node n2: 64 GB at 400 GB/s");
}

// The same, held once and needed on two nodes: 64 GB leave node n0 once, not twice. Of equal cuts
// the first is named.
TEST(CutBound, NodeEgressCountsOnce) {
  Case c(make_named("dgx-h100", 3), range(0, 8), range(8, 24));
  for (int32_t part = 0; part < 8; ++part) c.add({part}, range(8, 24), 8 * kGB);
  const LowerBound bound = c.bound();
  EXPECT_DOUBLE_EQ(bound.seconds, 64.0 / 400);
  EXPECT_EQ(bound.reason, "egress of node n0: 64 GB at 400 GB/s");
}

// What a rank of the same node holds comes by NVLink: one GPU takes 450 + 50 GB/s.
TEST(CutBound, GpuIngress) {
  Case c(make_named("dgx-h100", 2), range(0, 8), range(0, 8));
  c.add({0, 1}, {1, 5}, 10 * kGB);
  const LowerBound bound = c.bound();
  EXPECT_DOUBLE_EQ(bound.seconds, 10.0 / 500);
  EXPECT_EQ(bound.reason, "ingress of GPU n0.gpu5: 10 GB at 500 GB/s");
}

// A domain of 16 trays: each GPU needs its own part, so that a tray needs 1/16 of what the domain
// does.
TEST(CutBound, DomainIngress) {
  Case c(make_named("gb200-nvl72", 48), range(0, 128), range(128, 192));
  for (int32_t part = 0; part < 64; ++part) c.add({part, part + 64}, {part + 128}, kGB);
  const LowerBound bound = c.bound();
  EXPECT_DOUBLE_EQ(bound.seconds, 64.0 / 3200);
  EXPECT_EQ(bound.reason, "ingress of NVLink domain d2: 64 GB at 3.2 TB/s");
}

// Both train nodes hold all, so that neither has to send any of it; together they send 16 GB over
// 16 NICs. Each of four gen nodes takes a quarter of it.
TEST(CutBound, SideEgress) {
  Case c(make_named("dgx-h100", 6), range(0, 16), range(16, 48));
  for (int32_t part = 0; part < 4; ++part)
    c.add({part, part + 8}, range(16 + 8 * part, 24 + 8 * part), 4 * kGB);
  const LowerBound bound = c.bound();
  EXPECT_DOUBLE_EQ(bound.seconds, 16.0 / 800);
  EXPECT_EQ(bound.reason, "egress of the train ranks: 16 GB at 800 GB/s");
}

// Each gen node needs 8 GB at 400 GB/s, both together 16 GB at 800 GB/s.
TEST(CutBound, OfEqualCutsTheFirstIsNamed) {
  Case c(make_named("dgx-h100", 6), range(0, 32), range(32, 48));
  c.add({0, 8, 16, 24}, {32}, 8 * kGB);
  c.add({1, 9, 17, 25}, {40}, 8 * kGB);
  EXPECT_EQ(c.bound().reason, "ingress of node n4: 8 GB at 400 GB/s");
}

// Without NVLink rail 0 reaches rail 1 by the spine only: 4 NICs x 10 GB/s / 4.
TEST(CutBound, RailEgressOverTheSpine) {
  SmallFabric small;
  small.nvlink = false;
  small.network = "{kind: rail-optimized, oversubscription: 4}";
  const Ranks rail0 = {0, 4, 8, 12}, rail1 = {1, 5, 9, 13};
  Case c(small.make(4), rail0, rail1);
  for (size_t i = 0; i < 4; ++i) c.add({rail0[i]}, {rail1[(i + 1) % 4]}, kGB);
  const LowerBound bound = c.bound();
  EXPECT_DOUBLE_EQ(bound.seconds, 4.0 / 10);
  EXPECT_EQ(bound.reason, "egress of rail 0: 4 GB at 10 GB/s over the spine");
}

/// Two pods of two leaves, each leaf with a node of two GPUs; ways up of the rates given.
Fabric make_pods(const std::string& leaf_up, const std::string& pod_up) {
  return make_fabric(
      {fmt::format("name: pods\n"
                   "default_cost: nominal\n"
                   "node: {{gpus: 2, nvlink: 100GB/s, nvlink_latency: 300ns, nics: 2, "
                   "nic: 10GB/s, nic_latency: 1us}}\n"
                   "network:\n"
                   "  kind: switches\n"
                   "  switches:\n"
                   "  - {{name: core}}\n"
                   "  - {{name: pod0, parent: core, up: {1}, latency: 1us}}\n"
                   "  - {{name: pod1, parent: core, up: {1}, latency: 1us}}\n"
                   "  - {{name: leaf0, parent: pod0, up: {0}, latency: 1us}}\n"
                   "  - {{name: leaf1, parent: pod0, up: {0}, latency: 1us}}\n"
                   "  - {{name: leaf2, parent: pod1, up: {0}, latency: 1us}}\n"
                   "  - {{name: leaf3, parent: pod1, up: {0}, latency: 1us}}\n"
                   "hosts:\n"
                   "- {{name: a, leaves: [leaf0, leaf0]}}\n"
                   "- {{name: b, leaves: [leaf1, leaf1]}}\n"
                   "- {{name: c, leaves: [leaf2, leaf2]}}\n"
                   "- {{name: d, leaves: [leaf3, leaf3]}}\n",
                   leaf_up, pod_up),
       "pods.yaml"},
      4);
}

// A node takes 20 GB/s, its leaf 15, a pod of two leaves 20 over the core: the way to the core is
// the tightest, then with a wider one that of the leaves. Of equal cuts the first is named: a node
// rather than its leaf, pod0 rather than pod1.
TEST(CutBound, PodsAndLeaves) {
  for (const bool into : {true, false}) {
    Case pods(make_pods("15GB/s", "20GB/s"), range(0, 4), range(4, 8));
    for (int32_t rank = 0; rank < 4; ++rank) pods.add({rank}, {rank + 4}, 5 * kGB);
    pods.add({0, 1}, {1}, kGB);
    LowerBound bound = pods.bound();
    EXPECT_DOUBLE_EQ(bound.seconds, 20.0 / 20);
    EXPECT_EQ(bound.reason, "egress of switch pod0: 20 GB at 20 GB/s over the spine");
    ASSERT_EQ(bound.prices.size(), 1u);
    EXPECT_EQ(pods.fabric.links[static_cast<size_t>(bound.prices[0].link)].name, "pod0.up");
    EXPECT_DOUBLE_EQ(bound.prices[0].price, 1 / 20e9);

    Case leaves(make_pods("15GB/s", "30GB/s"), into ? range(0, 4) : range(4, 6),
                into ? range(4, 6) : range(0, 4));
    leaves.add({into ? 0 : 4}, {into ? 4 : 0}, 6 * kGB);
    leaves.add({into ? 2 : 5}, {into ? 5 : 2}, 6 * kGB);
    bound = leaves.bound();
    EXPECT_DOUBLE_EQ(bound.seconds, 12.0 / 15);
    EXPECT_EQ(bound.reason, into ? "ingress of node c: 12 GB at 15 GB/s over the spine"
                                 : "egress of node c: 12 GB at 15 GB/s over the spine");
  }
}

// A leaf that is a rail is named as one: switches are not looked at again.
TEST(CutBound, TwoToOne) {
  SmallFabric small;
  small.nvlink = false;
  small.network = "{kind: rail-optimized, oversubscription: 2}";
  Case c(small.make(4), {0, 4, 8, 12}, {1, 5, 9, 13});
  for (int32_t i = 0; i < 4; ++i) c.add({4 * i}, {4 * ((i + 1) % 4) + 1}, kGB);
  EXPECT_EQ(c.bound().reason, "egress of rail 0: 4 GB at 20 GB/s over the spine");
}

// The links of the cut have prices that add up to 1, and with them the price bound is the cut's.
TEST(CutBound, PricesOfTheCut) {
  Case c(make_named("dgx-h100", 3), range(0, 16), range(16, 24));
  for (int32_t part = 0; part < 8; ++part) c.add({part, part + 8}, range(16, 24), 8 * kGB);
  const LowerBound bound = c.bound();
  EXPECT_EQ(bound.prices.size(), 8u);
  std::vector<double> prices(c.fabric.links.size(), 0);
  for (const LinkPrice& item : bound.prices) prices[static_cast<size_t>(item.link)] = item.price;
  const HopGraph graph = make_hop_graph(c.fabric, link_rates(c.fabric, CostModel()));
  EXPECT_NEAR(price_bound(graph, make_multicasts(c.demand, c.gpu_of_rank), prices), bound.seconds,
              1e-8 * bound.seconds);
}

// ForestColl's optima of all-gathers among H100s: the cuts reach them.
TEST(CutBound, AllGathers) {
  const std::pair<int32_t, double> optima[] = {{8, 514.29},  {16, 533.33},  {32, 516.13},
                                               {64, 457.14}, {128, 426.67}, {256, 412.90}};
  for (const auto& [gpus, algbw] : optima) {
    Case c(make_named("dgx-h100-rail-only", gpus / 8), range(0, gpus), range(0, gpus));
    for (int32_t gpu = 0; gpu < gpus; ++gpu) c.add({gpu}, range(0, gpus), kGB);
    EXPECT_NEAR(gpus / c.bound().seconds, algbw, 0.005) << gpus;
  }
  Case c(make_named("dgx-h100", 1), range(0, 8), range(0, 8));
  for (int32_t gpu = 0; gpu < 8; ++gpu) c.add({gpu}, range(0, 8), kGB);
  EXPECT_NEAR(8 / c.bound().seconds, 571.43, 0.005);
}

TEST(LowerBoundTest, KeepsTheCutWherePricesAreNoBetter) {
  Case c(make_named("dgx-h100", 3), range(0, 16), range(16, 24));
  for (int32_t part = 0; part < 8; ++part) c.add({part, part + 8}, range(16, 24), 8 * kGB);
  const LowerBound bound = c.full_bound();
  EXPECT_FALSE(bound.from_prices);
  EXPECT_EQ(bound.reason, "ingress of node n2: 64 GB at 400 GB/s");
  ASSERT_EQ(bound.binding.size(), 1u);
  EXPECT_EQ(bound.binding[0].name, "NICs into gen ranks");
  EXPECT_EQ(bound.binding[0].links, 8);
  EXPECT_NEAR(bound.binding[0].share, 1, 1e-5);
  EXPECT_GE(bound.fluid_s, bound.seconds * (1 - 1e-9));
  EXPECT_LE(bound.fluid_s, bound.seconds * 1.001);
}

/// Without NVLink: 20 GB that ranks 0 and 2 hold, of four train ranks with a NIC of 10 GB/s each,
/// are needed in four parts. Neither of the two has to send any of it, and all train ranks could
/// send at 40 GB/s; together the two take a second.
Case two_of_four() {
  SmallFabric small;
  small.nvlink = false;
  small.gpus = small.nics = 1;
  small.network = "{kind: flat}";
  Case c(small.make(8), range(0, 4), range(4, 8));
  for (int32_t rank = 4; rank < 8; ++rank) c.add({0, 2}, {rank}, 5 * kGB);
  return c;
}

TEST(LowerBoundTest, PricesSeeWhatNoCutDoes) {
  const Case c = two_of_four();
  EXPECT_DOUBLE_EQ(c.bound().seconds, 0.5);
  const LowerBound bound = c.full_bound();
  EXPECT_TRUE(bound.from_prices);
  EXPECT_LE(bound.seconds, 1);
  EXPECT_GE(bound.seconds, 0.998);
  EXPECT_EQ(bound.reason, "prices: 100 % NICs out of train ranks");
  double weight = 0;
  for (const LinkPrice& item : bound.prices) weight += item.price * 10e9;
  EXPECT_NEAR(weight, 1, 1e-5);
}

TEST(LowerBoundTest, TextAndBack) {
  const Case c = two_of_four();
  const LowerBound bound = c.full_bound();
  const LowerBound back = parse_bound(print_bound(bound, c.fabric), "bound", c.fabric);
  EXPECT_EQ(back.seconds, bound.seconds);
  EXPECT_EQ(back.reason, bound.reason);
  EXPECT_EQ(back.from_prices, bound.from_prices);
  ASSERT_EQ(back.prices.size(), bound.prices.size());
  EXPECT_EQ(back.prices, bound.prices);
  // What is saved proves the bound.
  std::vector<double> prices(c.fabric.links.size(), 0);
  for (const LinkPrice& item : back.prices) prices[static_cast<size_t>(item.link)] = item.price;
  const HopGraph graph = make_hop_graph(c.fabric, link_rates(c.fabric, CostModel()));
  EXPECT_EQ(price_bound(graph, make_multicasts(c.demand, c.gpu_of_rank), prices), bound.seconds);
  const std::string text = print_bound(bound, c.fabric);
  expect_refused([&] { parse_bound(with_change(text, "n0.", "n77."), "bound", c.fabric); },
                 {"bound", "n77.nic0.out", "a link of the fabric"});
  expect_refused([&] { parse_bound(with_change(text, "seconds", "second"), "bound", c.fabric); },
                 {"seconds"});
}

TEST(CutBound, LocalCopiesCostNothing) {
  Case c(make_named("dgx-h100", 1), range(0, 8), range(0, 8));
  for (int32_t rank = 0; rank < 8; ++rank) c.add({rank}, {rank}, kGB);
  const LowerBound bound = c.bound();
  EXPECT_EQ(bound.seconds, 0);
  EXPECT_EQ(bound.reason, "nothing has to move");
}

TEST(CutBound, RanksAreWhereTheyArePlaced) {
  Case c(make_named("dgx-h100", 2), {4}, {7});
  c.gpu_of_rank = {-1, -1, -1, -1, 15, -1, -1, 2};
  c.add({4}, {7}, 4 * kGB);
  EXPECT_EQ(c.bound().reason, "ingress of node n0: 4 GB at 400 GB/s");
}

TEST(CutBound, NoLinkAcrossTheCut) {
  SmallFabric small;
  small.nvlink = false;
  small.network = "{kind: rail-only}";
  Case c(small.make(2), {0}, {1});
  c.add({0}, {1}, kGB);
  expect_refused([&] { c.bound(); }, {"no link leads out of rail 0, but 1 GB have to"});
}

// 5120 classes of 1 MB from 256 to 256 ranks; class i is needed by gen ranks i and i + 8, modulo
// 256. A gen node needs the 8 x 20 classes of its own ranks and as many of the node before: 320 MB
// at 400 GB/s. A train node sends 160 MB.
TEST(CutBound, ManyRanksAndClasses) {
  Case c(make_named("dgx-h100", 64), range(0, 256), range(256, 512));
  for (int32_t rank = 0; rank < 512; ++rank) c.demand.rank_sets.push_back({rank});
  for (int32_t i = 0; i < 256; ++i) {
    Ranks needers = {256 + i, 256 + (i + 8) % 256};
    std::sort(needers.begin(), needers.end());
    c.demand.rank_sets.push_back(needers);
    for (int32_t copy = 0; copy < 20; ++copy)
      c.demand.classes.push_back(
          {.holders = i, .needers = 512 + i, .bytes = 1'000'000, .atoms = 1});
  }
  const LowerBound bound = c.bound();
  EXPECT_DOUBLE_EQ(bound.seconds, 320e6 / 400e9);
  EXPECT_EQ(bound.reason, "ingress of node n32: 320 MB at 400 GB/s");
}

/// The bound from its definition: every X in turn, every class tried against it.
double plain_bound(const Case& c) {
  std::vector<std::set<int32_t>> cuts;
  std::map<int32_t, std::set<int32_t>> nodes, domains, rails;
  for (int32_t g = 0; g < static_cast<int32_t>(c.fabric.gpus.size()); ++g) {
    const Gpu& gpu = c.fabric.gpus[static_cast<size_t>(g)];
    cuts.push_back({g});
    nodes[gpu.node].insert(g);
    domains[gpu.domain].insert(g);
    rails[c.fabric.nics[static_cast<size_t>(gpu.nics[0])].rail].insert(g);
  }
  for (const auto& groups : {nodes, domains, rails})
    for (const auto& [index, gpus] : groups) cuts.push_back(gpus);
  for (const Layout* side : {&c.train, &c.gen}) {
    cuts.emplace_back();
    for (const int32_t rank : side->ranks)
      cuts.back().insert(c.gpu_of_rank[static_cast<size_t>(rank)]);
  }
  const std::vector<double> rates = link_rates(c.fabric, CostModel());
  double seconds = 0;
  for (const std::set<int32_t>& x : cuts) {
    const auto ranks_in = [&](int32_t set) {
      const Ranks& ranks = c.demand.rank_sets[static_cast<size_t>(set)];
      return std::count_if(ranks.begin(), ranks.end(), [&](int32_t rank) {
        return x.count(c.gpu_of_rank[static_cast<size_t>(rank)]) > 0;
      });
    };
    int64_t into = 0, out = 0;
    for (const DemandClass& item : c.demand.classes) {
      const auto all = [&](int32_t set) {
        return std::ssize(c.demand.rank_sets[static_cast<size_t>(set)]);
      };
      if (ranks_in(item.needers) > 0 && ranks_in(item.holders) == 0) into += item.bytes;
      if (ranks_in(item.needers) < all(item.needers) && ranks_in(item.holders) == all(item.holders))
        out += item.bytes;
    }
    const Ranks gpus(x.begin(), x.end());
    if (into > 0)
      seconds = std::max(seconds,
                         static_cast<double>(into) / minimum_cut(c.fabric, gpus, true, rates).rate);
    if (out > 0)
      seconds = std::max(seconds,
                         static_cast<double>(out) / minimum_cut(c.fabric, gpus, false, rates).rate);
  }
  return seconds;
}

TEST(CutBound, AgreesWithItsDefinition) {
  std::mt19937 random(11);
  const auto below = [&](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  std::set<Cut::Kind> kinds;
  for (int round = 0; round < 400; ++round) {
    SmallFabric small;
    small.gpus = 2;
    small.nics = 1 + below(4);
    small.domain_nodes = 1 + below(2);
    small.nvlink = below(4) > 0;
    small.network = below(2) == 0 ? "{kind: flat}" : "{kind: rail-optimized, oversubscription: 6}";
    // Ranks on shuffled GPUs; the sides may overlap.
    const int32_t ranks = 8;
    Case c(small.make(4), range(0, 2 + below(5)), {});
    c.gen.ranks = range(below(static_cast<int32_t>(c.train.ranks.size()) + 1), ranks);
    for (int32_t i = ranks - 1; i > 0; --i)
      std::swap(c.gpu_of_rank[static_cast<size_t>(i)],
                c.gpu_of_rank[static_cast<size_t>(below(i + 1))]);
    const auto some = [&](const Ranks& of) {
      Ranks chosen;
      for (const int32_t rank : of)
        if (below(3) == 0) chosen.push_back(rank);
      if (chosen.empty()) chosen.push_back(of[0]);
      return chosen;
    };
    const int32_t classes = 1 + below(6);
    for (int32_t i = 0; i < classes; ++i)
      c.add(some(c.train.ranks), some(c.gen.ranks), 1 + below(1000));
    const LowerBound bound = c.bound();
    EXPECT_DOUBLE_EQ(bound.seconds, plain_bound(c)) << "round " << round;
    EXPECT_DOUBLE_EQ(bound.seconds, bound.cut.seconds());
    if (bound.seconds > 0) kinds.insert(bound.cut.kind);
  }
  EXPECT_GE(kinds.size(), 4u);  // the cases are of many kinds
}

}  // namespace
}  // namespace refit
