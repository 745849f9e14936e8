#include "sim/search/colouring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace refit {
namespace {

/// Edges at the busiest port: no colouring can do with fewer colours, and König's theorem says that
/// one does with as many.
int32_t busiest_port(const std::vector<PortPair>& edges) {
  std::map<int32_t, int32_t> from, to;
  int32_t most = 0;
  for (const PortPair& edge : edges) most = std::max({most, ++from[edge.from], ++to[edge.to]});
  return most;
}

void expect_optimal(const std::vector<PortPair>& edges) {
  const std::vector<int32_t> colours = colour_edges(edges);
  ASSERT_EQ(colours.size(), edges.size());
  std::set<std::pair<int32_t, int32_t>> from, to;
  int32_t count = 0;
  for (size_t e = 0; e < edges.size(); ++e) {
    EXPECT_GE(colours[e], 0);
    EXPECT_TRUE(from.insert({edges[e].from, colours[e]}).second) << "edge " << e;
    EXPECT_TRUE(to.insert({edges[e].to, colours[e]}).second) << "edge " << e;
    count = std::max(count, colours[e] + 1);
  }
  EXPECT_EQ(count, busiest_port(edges));
}

TEST(ColourEdges, Nothing) { EXPECT_TRUE(colour_edges({}).empty()); }

TEST(ColourEdges, OnePairManyMessages) { expect_optimal(std::vector<PortPair>(70, {3, 5})); }

// K(3,3) needs 3 colours; a greedy choice in this order would need 4.
TEST(ColourEdges, CompleteGraph) {
  std::vector<PortPair> edges;
  for (int32_t from = 0; from < 3; ++from) {
    for (int32_t to = 0; to < 3; ++to) edges.push_back({from, to});
  }
  expect_optimal(edges);
}

TEST(ColourEdges, RandomMultigraphs) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto ports = static_cast<uint32_t>(1 + random() % 12);
    std::vector<PortPair> edges(random() % 300);
    for (PortPair& edge : edges) {
      edge = {static_cast<int32_t>(random() % ports), static_cast<int32_t>(random() % ports)};
    }
    expect_optimal(edges);
  }
}

}  // namespace
}  // namespace refit
