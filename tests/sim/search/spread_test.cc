#include "sim/search/spread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "plans/plan.h"

namespace refit {
namespace {

std::vector<int32_t> ranks_from(int32_t first, int32_t count) {
  std::vector<int32_t> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

/// Hops until a rank has it; fails where a rank gets it twice, or from one that has not got it.
std::map<int32_t, int32_t> follow(const std::vector<SpreadHop>& hops, int32_t entry) {
  std::map<int32_t, int32_t> depth = {{entry, 0}};
  for (size_t i = 0; i < hops.size(); ++i) {
    const SpreadHop& hop = hops[i];
    EXPECT_LT(hop.parent, static_cast<int32_t>(i));
    EXPECT_EQ(hop.from, hop.parent < 0 ? entry : hops[static_cast<size_t>(hop.parent)].to);
    EXPECT_TRUE(depth.contains(hop.from));
    EXPECT_TRUE(depth.try_emplace(hop.to, depth[hop.from] + 1).second) << hop.to;
  }
  return depth;
}

// Up to nine ranks are a step, more are two.
TEST(SpreadInside, ReachesAllInTwoSteps) {
  for (int32_t count = 1; count <= 72; ++count) {
    const std::vector<int32_t> needers = ranks_from(100, count);
    for (const int32_t entry : needers) {
      SCOPED_TRACE(testing::Message() << count << " from " << entry);
      const auto depth = follow(spread_inside(needers, entry), entry);
      EXPECT_EQ(std::ssize(depth), count);
      int32_t most = 0;
      for (const auto& [rank, hops] : depth) most = std::max(most, hops);
      EXPECT_LE(most, count <= 9 ? 1 : 2);
    }
  }
}

// With every rank an entry once: peers of either step, and what a rank sends.
TEST(SpreadInside, SpreadsTheWork) {
  for (const int32_t count : {16, 64, 72}) {  // rows of equal length
    std::map<int32_t, std::set<int32_t>> column, row;
    std::map<int32_t, int32_t> sent;
    const std::vector<int32_t> needers = ranks_from(0, count);
    for (const int32_t entry : needers) {
      const std::vector<SpreadHop> hops = spread_inside(needers, entry);
      std::set<int32_t> parents;
      for (const SpreadHop& hop : hops) parents.insert(hop.parent);
      for (int32_t i = 0; i < std::ssize(hops); ++i) {
        const SpreadHop& hop = hops[static_cast<size_t>(i)];
        (parents.contains(i) ? column : row)[hop.from].insert(hop.to);
        ++sent[hop.from];
      }
    }
    for (const int32_t rank : needers) {
      EXPECT_EQ(sent[rank], count - 1);
      EXPECT_LE(std::ssize(column[rank]), kMaxPeersPerStep);
      EXPECT_LE(std::ssize(row[rank]), kMaxPeersPerStep);
    }
  }
}

TEST(SpreadInside, ARelaySendsToAll) {
  const auto hops = spread_inside(ranks_from(1, 20), 0);
  EXPECT_EQ(hops.size(), 20u);
  for (const SpreadHop& hop : hops) EXPECT_EQ(hop.from, 0);
}

}  // namespace
}  // namespace refit
