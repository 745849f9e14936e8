#include "sim/flow/tree.h"

#include <gtest/gtest.h>

#include <limits>

#include "sim/flow/tree_bound.h"
#include "tests/sim/flow/flow_cases.h"

namespace refit {
namespace {

using testing::cases;
using testing::nominal_rates;
using testing::random_fabric;
using testing::random_multicast;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t at(int32_t index) { return static_cast<size_t>(index); }

/// Price of the cheapest route from GPU to GPU, of those that list_routes knows.
std::vector<std::vector<double>> route_prices(const Fabric& fabric, const PortPrices& prices) {
  const auto count = static_cast<int32_t>(fabric.gpus.size());
  std::vector<std::vector<double>> table(at(count), std::vector<double>(at(count), kInfinity));
  for (int32_t from = 0; from < count; ++from)
    for (int32_t to = 0; to < count; ++to) {
      if (from == to) continue;
      for (const Route& route : list_routes(fabric, from, to)) {
        double total = 0;
        for (const int32_t link : route.links) total += prices.of(link);
        table[at(from)][at(to)] = std::min(table[at(from)][at(to)], total);
      }
    }
  return table;
}

/// The cheapest tree by trying every way to give each GPU a sender, or none.
double plain_cheapest(const Multicast& item, const std::vector<std::vector<double>>& prices) {
  const size_t count = prices.size();
  std::vector<int32_t> sender(count, -1);
  std::vector<char> holds(count, 0), needs(count, 0);
  for (const int32_t gpu : item.holders) holds[at(gpu)] = 1;
  for (const int32_t gpu : item.needers) needs[at(gpu)] = 1;
  double best = kInfinity;
  const auto is_tree = [&] {
    for (size_t gpu = 0; gpu < count; ++gpu) {
      int32_t up = static_cast<int32_t>(gpu);
      for (size_t steps = 0; sender[at(up)] >= 0; ++steps) {
        if (steps > count) return false;
        up = sender[at(up)];
      }
      if (sender[gpu] >= 0 && !holds[at(up)]) return false;
    }
    return true;
  };
  const auto choose = [&](const auto& self, size_t gpu, double total) -> void {
    if (total >= best) return;
    if (gpu == count) {
      if (is_tree()) best = total;
      return;
    }
    sender[gpu] = -1;
    if (!needs[gpu]) self(self, gpu + 1, total);
    if (holds[gpu]) return;
    for (size_t from = 0; from < count; ++from) {
      if (from == gpu || prices[from][gpu] == kInfinity) continue;
      sender[gpu] = static_cast<int32_t>(from);
      self(self, gpu + 1, total + prices[from][gpu]);
    }
    sender[gpu] = -1;
  };
  choose(choose, 0, 0);
  return best;
}

/// What the hops add up to, if they are a tree as they should be.
double price_of_tree(const HopGraph& graph, const PortPrices& prices, const Multicast& item,
                     const std::vector<PortHop>& hops) {
  std::vector<char> has(graph.domains.of.size(), 0);
  for (const int32_t gpu : item.holders) has[at(gpu)] = 1;
  double total = 0;
  for (const PortHop& hop : hops) {
    const int32_t from = graph.ports[at(hop.from)].gpu, to = graph.ports[at(hop.to)].gpu;
    EXPECT_TRUE(graph.ports[at(hop.from)].sends && graph.ports[at(hop.to)].receives);
    EXPECT_TRUE(has[at(from)]) << "a hop from a GPU that has nothing yet";
    EXPECT_FALSE(has[at(to)]) << "a GPU is entered twice";
    has[at(to)] = 1;
    graph.for_each_link(hop, [&](int32_t link) { total += prices.of(link); });
  }
  for (const int32_t gpu : item.needers) EXPECT_TRUE(has[at(gpu)]) << "GPU " << gpu;
  return total;
}

// proven bound <= the cheapest tree <= the tree found, and both ends mostly meet.
TEST(Trees, AroundTheCheapestOfAll) {
  std::mt19937 random(3);
  int compared = 0, found_it = 0, bound_it = 0;
  double worst_found = 1, worst_bound = 1;
  for (int round = 0; round < cases(150, 3000); ++round) {
    const int32_t nodes = 1 + static_cast<int32_t>(random() % 3);
    const int32_t gpus = nodes == 1 ? 4 : 2;
    const Fabric fabric = random_fabric(random, nodes, gpus);
    const HopGraph graph = make_hop_graph(fabric, nominal_rates(fabric));
    PortPrices prices(graph);
    // Few different prices, some of them 0, or any.
    const bool few = random() % 2 == 0;
    for (size_t link = 0; link < fabric.links.size(); ++link)
      prices.set(static_cast<int32_t>(link), static_cast<double>(random() % (few ? 3 : 1000)));
    const Multicast item = random_multicast(random, nodes * gpus, 3, 2);
    const double exact = plain_cheapest(item, route_prices(fabric, prices));
    TreeFinder finder(graph, prices, true);
    std::vector<PortHop> hops;
    const bool reached = finder.find(item, hops);
    ASSERT_EQ(reached, exact < kInfinity) << "round " << round;
    if (!reached) continue;
    const double found = price_of_tree(graph, prices, item, hops);
    EXPECT_NEAR(found, prices.hops(hops), 1e-9 * found);
    const double bound =
        TreeBound(graph, prices, random() % 2 == 0 ? graph.domains : graph.rails, true).least(item);
    EXPECT_GE(found, exact * (1 - 1e-12)) << "round " << round;
    EXPECT_LE(bound, exact * (1 + 1e-12)) << "round " << round;
    if (exact == 0) continue;
    ++compared;
    found_it += found <= exact * (1 + 1e-9);
    bound_it += bound >= exact * (1 - 1e-9);
    worst_found = std::max(worst_found, found / exact);
    worst_bound = std::min(worst_bound, bound / exact);
  }
  RecordProperty("worst_found", std::to_string(worst_found));
  RecordProperty("worst_bound", std::to_string(worst_bound));
  fmt::print("{} cases: cheapest found {}, bound exact {}; worst {:.3f} and {:.3f}\n", compared,
             found_it, bound_it, worst_found, worst_bound);
  EXPECT_GE(found_it, compared * 8 / 10);
  EXPECT_GE(bound_it, compared * 6 / 10);
}

// A domain of four is entered once, by the GPU whose entry is cheapest; the others get it from the
// one that sends cheapest.
TEST(Trees, EntryAndFanOut) {
  const Fabric fabric = make_fabric(
      {"name: small\ndefault_cost: nominal\nnode: {gpus: 4, nvlink: 100GB/s, nvlink_latency: 1us, "
       "nics: 4, nic: 10GB/s, nic_latency: 1us}\ndomain: {nodes: 1}\nnetwork: {kind: "
       "rail-optimized, oversubscription: "
       "1}\n",
       "small.yaml"},
      2);
  const HopGraph graph = make_hop_graph(fabric, nominal_rates(fabric));
  PortPrices prices(graph);
  const auto set = [&](int32_t link, double price) { prices.set(link, price); };
  for (size_t gpu = 0; gpu < 8; ++gpu) {
    set(fabric.gpus[gpu].nvlink_out, gpu == 6 ? 1 : 2);
    set(fabric.gpus[gpu].nvlink_in, 1);
    set(fabric.nics[gpu].out, 10);
    set(fabric.nics[gpu].in, gpu == 5 ? 10 : 20);
  }
  const Multicast item = {{0}, {4, 5, 6, 7}, 1e9};
  TreeFinder finder(graph, prices, true);
  std::vector<PortHop> hops;
  ASSERT_TRUE(finder.find(item, hops));
  // 0 to 5: 10 + 10; 5 to 6: 2 + 1; 6 to 4 and to 7: 1 + 1 each.
  EXPECT_DOUBLE_EQ(price_of_tree(graph, prices, item, hops), 20 + 3 + 4);
  EXPECT_LE(TreeBound(graph, prices, graph.domains, true).least(item), 27);
}

}  // namespace
}  // namespace refit
