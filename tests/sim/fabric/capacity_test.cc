#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/sim/fabric/fabrics.h"

namespace refit {
namespace {

constexpr double kGB = 1e9;

std::vector<double> nominal(const Fabric& fabric) {
  std::vector<double> rates;
  for (const Link& link : fabric.links) rates.push_back(link.rate);
  return rates;
}

std::vector<int32_t> range(int32_t first, int32_t last) {
  std::vector<int32_t> gpus(static_cast<size_t>(last - first));
  std::iota(gpus.begin(), gpus.end(), first);
  return gpus;
}

double capacity(const Fabric& fabric, const std::vector<int32_t>& inside, bool into) {
  return minimum_cut(fabric, inside, into, nominal(fabric)).rate;
}

TEST(CutCapacity, DgxH100) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), 4);
  for (const bool into : {true, false}) {
    EXPECT_EQ(capacity(fabric, {0}, into), (450 + 50) * kGB);       // NVLink and its own NIC
    EXPECT_EQ(capacity(fabric, range(8, 16), into), 8 * 50 * kGB);  // the NICs of the node
    EXPECT_EQ(capacity(fabric, range(0, 16), into), 16 * 50 * kGB);
    EXPECT_EQ(capacity(fabric, range(0, 24), into), 8 * 50 * kGB);  // the other node's NICs
    // Four of eight GPUs: their NVLink ports, and their NICs.
    EXPECT_EQ(capacity(fabric, range(0, 4), into), 4 * (450 + 50) * kGB);
    // Seven of eight: the eighth has one NVLink port; 24 + 1 NICs outside against 7.
    EXPECT_EQ(capacity(fabric, range(0, 7), into), (450 + 7 * 50) * kGB);
    // A rail: its GPUs' NVLink and NICs.
    EXPECT_EQ(capacity(fabric, {0, 8, 16, 24}, into), 4 * (450 + 50) * kGB);
  }
}

TEST(CutCapacity, AchievableRatesCount) {
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), 2);
  std::vector<double> rates = nominal(fabric);
  for (double& rate : rates) rate *= 0.968;
  EXPECT_DOUBLE_EQ(minimum_cut(fabric, range(0, 8), true, rates).rate, 8 * 48.4 * kGB);
  rates[static_cast<size_t>(fabric.nics[3].in)] = 0;
  EXPECT_DOUBLE_EQ(minimum_cut(fabric, range(0, 8), true, rates).rate, 7 * 48.4 * kGB);
}

TEST(CutCapacity, Gb200) {
  const Fabric fabric = make_fabric(load_fabric_source("gb200-nvl72"), 32);
  for (const bool into : {true, false}) {
    EXPECT_EQ(capacity(fabric, {5}, into), (900 + 50) * kGB);
    EXPECT_EQ(capacity(fabric, range(4, 8), into), 4 * (900 + 50) * kGB);  // a tray
    EXPECT_EQ(capacity(fabric, range(0, 64), into), 3200 * kGB);           // a domain
  }
}

TEST(CutCapacity, EmulatedRanksShareOneNic) {
  const Fabric fabric = make_fabric(load_fabric_source("emulated-4x4"), 4);
  for (const bool into : {true, false}) {
    EXPECT_EQ(capacity(fabric, {0}, into), (500 + 50) * 1e6);
    EXPECT_EQ(capacity(fabric, {0, 1}, into), (2 * 500 + 50) * 1e6);
    EXPECT_EQ(capacity(fabric, range(0, 4), into), 50 * 1e6);
  }
}

TEST(CutCapacity, NothingOutsideOrInside) {
  const Fabric fabric = SmallFabric().make(2);
  EXPECT_EQ(capacity(fabric, range(0, 8), true), 0);
  EXPECT_EQ(capacity(fabric, range(0, 8), false), 0);
  EXPECT_EQ(capacity(fabric, {}, true), 0);
}

// Four nodes; X is rail 0. Its four GPUs take 4 x 100 GB/s by NVLink. Their NICs take 4 x 10 more,
// but every sender is on another leaf.
TEST(CutCapacity, SpineBinds) {
  SmallFabric small;
  const std::vector<int32_t> rail = {0, 4, 8, 12};
  EXPECT_EQ(capacity(small.make(4), rail, true), (400 + 40) * kGB);
  small.network = "{kind: rail-optimized, oversubscription: 4}";
  EXPECT_EQ(capacity(small.make(4), rail, true), (400 + 10) * kGB);
  EXPECT_EQ(capacity(small.make(4), rail, false), (400 + 10) * kGB);
  // With half of each rail inside, the leaves themselves carry all.
  EXPECT_EQ(capacity(small.make(4), range(0, 8), true), 80 * kGB);
  small.network = "{kind: rail-only}";
  EXPECT_EQ(capacity(small.make(4), rail, true), 400 * kGB);
  small.network = "{kind: flat}";
  EXPECT_EQ(capacity(small.make(4), rail, true), (400 + 40) * kGB);
}

/// Maximum flow by shortest augmenting paths on the whole graph: a vertex per GPU, switch and
/// direction of a NIC.
double plain_flow(const Fabric& fabric, const std::vector<char>& sends,
                  const std::vector<double>& rates) {
  const size_t nics = fabric.vertices.size();  // NIC i receives here, and sends at its own vertex
  const size_t source = nics + fabric.nics.size(), sink = source + 1;
  const double unlimited = 1e30;
  std::vector<std::vector<double>> left(sink + 1, std::vector<double>(sink + 1, 0));
  for (size_t id = 0; id < fabric.links.size(); ++id) {
    const Vertex& to = fabric.vertices[static_cast<size_t>(fabric.links[id].to)];
    const size_t end = to.kind == VertexKind::kNic ? nics + static_cast<size_t>(to.index)
                                                   : static_cast<size_t>(fabric.links[id].to);
    left[static_cast<size_t>(fabric.links[id].from)][end] += rates[id];
  }
  for (size_t g = 0; g < fabric.gpus.size(); ++g) {
    const size_t gpu = static_cast<size_t>(fabric.gpus[g].vertex);
    (sends[g] ? left[source][gpu] : left[gpu][sink]) = unlimited;
    for (const int32_t nic : fabric.gpus[g].nics) {
      left[gpu][static_cast<size_t>(fabric.nics[static_cast<size_t>(nic)].vertex)] = unlimited;
      left[nics + static_cast<size_t>(nic)][gpu] = unlimited;
    }
  }
  if (fabric.spine >= 0)
    for (const Switch& leaf : fabric.leaves)
      if (leaf.up < 0)
        left[static_cast<size_t>(leaf.vertex)][static_cast<size_t>(fabric.spine)] =
            left[static_cast<size_t>(fabric.spine)][static_cast<size_t>(leaf.vertex)] = unlimited;
  double flow = 0;
  for (;;) {
    std::vector<size_t> before(sink + 1, sink + 1), queue = {source};
    before[source] = source;
    for (size_t next = 0; next < queue.size(); ++next)
      for (size_t v = 0; v <= sink; ++v)
        if (before[v] > sink && left[queue[next]][v] > 0) {
          before[v] = queue[next];
          queue.push_back(v);
        }
    if (before[sink] > sink) return flow;
    double part = unlimited;
    for (size_t v = sink; v != source; v = before[v]) part = std::min(part, left[before[v]][v]);
    for (size_t v = sink; v != source; v = before[v]) {
      left[before[v]][v] -= part;
      left[v][before[v]] += part;
    }
    flow += part;
  }
}

TEST(CutCapacity, AgreesWithAugmentingPaths) {
  std::mt19937 random(7);
  for (const char* network :
       {"{kind: flat}", "{kind: rail-only}", "{kind: rail-optimized, oversubscription: 1}",
        "{kind: rail-optimized, oversubscription: 5}"})
    for (const int nics : {1, 2, 3, 6})
      for (const bool nvlink : {true, false})
        for (int round = 0; round < 12; ++round) {
          SmallFabric small;
          small.gpus = 3;
          small.nics = nics;
          small.network = network;
          small.nvlink = nvlink;
          small.domain_nodes = 1 + round % 2;
          const Fabric fabric = small.make(3);
          std::vector<double> rates;
          for (size_t i = 0; i < fabric.links.size(); ++i)
            rates.push_back(static_cast<double>(random() % 1000));
          std::vector<char> sends(fabric.gpus.size());
          std::vector<int32_t> inside;
          for (size_t g = 0; g < sends.size(); ++g) {
            sends[g] = random() % 2 == 0;
            if (!sends[g]) inside.push_back(static_cast<int32_t>(g));
          }
          const double expected = plain_flow(fabric, sends, rates);
          EXPECT_EQ(minimum_cut(fabric, inside, true, rates).rate, expected) << network << nics;
          std::vector<int32_t> outside;
          for (size_t g = 0; g < sends.size(); ++g)
            if (sends[g]) outside.push_back(static_cast<int32_t>(g));
          EXPECT_EQ(minimum_cut(fabric, outside, false, rates).rate, expected) << network << nics;
        }
}

}  // namespace
}  // namespace refit
