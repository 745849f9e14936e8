#include "sim/simulator/maxmin.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/sim/simulator/oracle.h"

namespace refit {
namespace {

constexpr double kInfinity = MaxMin::kInfinity;

TEST(MaxMin, ExampleOfTheHeader) {
  // A = {f, g}, 10; B = {g, h}, 4: g = h = 4 / 2, f = 10 - 2.
  MaxMin solver({10, 4}, 2);
  const int32_t f = solver.add_flow(std::vector{0});
  const int32_t g = solver.add_flow(std::vector{0, 1});
  const int32_t h = solver.add_flow(std::vector{1});
  EXPECT_EQ(solver.rate(f), 0);
  EXPECT_EQ(solver.bottleneck(f), MaxMin::kUnknown);
  EXPECT_EQ(solver.solve().size(), 3u);
  EXPECT_EQ(solver.bottleneck(f), 0);
  EXPECT_EQ(solver.bottleneck(g), 1);
  EXPECT_EQ(solver.bottleneck(h), 1);
  EXPECT_DOUBLE_EQ(solver.rate(f), 8);
  EXPECT_DOUBLE_EQ(solver.rate(g), 2);
  EXPECT_DOUBLE_EQ(solver.rate(h), 2);
  EXPECT_DOUBLE_EQ(solver.level(1), 2);
  EXPECT_DOUBLE_EQ(solver.level(0), 8);
}

TEST(MaxMin, RemovedFlowLeavesItsShare) {
  // Without h, g has B to itself up to 4, and A leaves it 10 / 2 = 5: g = 4, f = 6.
  MaxMin solver({10, 4}, 2);
  const int32_t f = solver.add_flow(std::vector{0});
  const int32_t g = solver.add_flow(std::vector{0, 1});
  const int32_t h = solver.add_flow(std::vector{1});
  solver.solve();
  solver.remove_flow(h);
  solver.solve();
  EXPECT_DOUBLE_EQ(solver.rate(f), 6);
  EXPECT_DOUBLE_EQ(solver.rate(g), 4);
  EXPECT_EQ(solver.add_flow(std::vector{1}), h) << "ids are reused";
}

TEST(MaxMin, OwnCapLeavesTheRestToOthers) {
  // 12 for three flows, one capped at 1: (12 - 1) / 2 = 5.5 each for the others.
  MaxMin solver({12}, 1);
  const int32_t capped = solver.add_flow(std::vector{0}, 1);
  const int32_t a = solver.add_flow(std::vector{0});
  const int32_t b = solver.add_flow(std::vector{0});
  solver.solve();
  EXPECT_DOUBLE_EQ(solver.rate(capped), 1);
  EXPECT_EQ(solver.bottleneck(capped), MaxMin::kOwnCap);
  EXPECT_DOUBLE_EQ(solver.rate(a), 5.5);
  EXPECT_DOUBLE_EQ(solver.rate(b), 5.5);
}

TEST(MaxMin, FlowWithoutResourcesRunsAtItsCap) {
  MaxMin solver({1}, 1);
  const int32_t flow = solver.add_flow({}, 7);
  const int32_t free = solver.add_flow({});
  solver.solve();
  EXPECT_EQ(solver.rate(flow), 7);
  EXPECT_EQ(solver.rate(free), kInfinity);
}

TEST(MaxMin, FlowAddedAndRemovedBeforeSolvingIsNoChange) {
  MaxMin solver({6}, 1);
  const int32_t kept = solver.add_flow(std::vector{0});
  solver.solve();
  solver.remove_flow(solver.add_flow(std::vector{0}));
  EXPECT_TRUE(solver.solve().empty());
  EXPECT_EQ(solver.rate(kept), 6);
}

TEST(MaxMin, LimitsThatJustFillTheCapacityEnd) {
  // Caps of which the sum rounds to a hair above or below the capacity: the level is the largest of
  // them.
  for (const double sign : {-1.0, 0.0, 1.0}) {
    MaxMin solver({0.3 * (1 + sign * 4e-13)}, 1);
    for (const double cap : {0.05, 0.1, 0.15}) solver.add_flow(std::vector{0}, cap);
    const int32_t extra = solver.add_flow(std::vector{0}, 0.2);
    solver.solve();
    solver.remove_flow(extra);
    solver.solve();
    EXPECT_NEAR(solver.rate(0), 0.05, 1e-12);
    EXPECT_NEAR(solver.rate(2), 0.15, 1e-12);
  }
}

TEST(MaxMin, SymmetricPatternIsSolvedLocally) {
  // 64 senders x 64 receivers, 8 flows a port, all ports full at the same level: when a flow ends
  // nobody can gain, since each other flow of its sender is held back by a receiver that stays
  // full. Two visits, not 128, and at most the 7 other flows of each port get another bottleneck.
  constexpr int32_t kPorts = 64;
  MaxMin solver(std::vector<double>(2 * kPorts, 8), 2);
  for (int32_t from = 0; from < kPorts; ++from) {
    for (int32_t k = 0; k < 8; ++k) {
      solver.add_flow(std::vector{from, kPorts + (from + 5 * k) % kPorts});
    }
  }
  EXPECT_EQ(solver.solve().size(), 512u);
  const int64_t visits = solver.visits();
  solver.remove_flow(100);
  EXPECT_LE(solver.solve().size(), 14u);
  EXPECT_LE(solver.visits() - visits, 2);
  for (int32_t flow = 0; flow < 512; ++flow) {
    if (flow == 100) continue;
    EXPECT_EQ(solver.rate(flow), 1);
  }
}

/// Random flows that come and go; rates are compared with the oracle's after each change, and
/// judged by the certificate.
struct RandomCase {
  int resources, width, changes;
  bool equal_capacities;  // many ties
  bool caps;
  double patience = MaxMin::kPatience;
};

class MaxMinRandom : public ::testing::TestWithParam<RandomCase> {};

TEST_P(MaxMinRandom, AgreesWithProgressiveFilling) {
  const RandomCase& param = GetParam();
  std::mt19937_64 random(static_cast<uint64_t>(param.resources * 100 + param.width));
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::vector<double> capacity;
  for (int r = 0; r < param.resources; ++r) {
    capacity.push_back(param.equal_capacities ? 10 : 1 + static_cast<double>(below(1000)) / 7);
  }
  MaxMin solver(capacity, param.width, param.patience);
  std::map<int32_t, OracleFlow> live;
  std::map<int32_t, int32_t> held_by;  // as told by solve()
  std::map<int32_t, double> level;     // as told by moved()

  for (int change = 0; change < param.changes; ++change) {
    for (size_t n = below(4); n-- > 0;) {
      OracleFlow flow;
      for (size_t k = below(static_cast<size_t>(param.width)) + 1; k-- > 0;) {
        const auto r = static_cast<int32_t>(below(capacity.size()));
        if (std::ranges::count(flow.resources, r) == 0) flow.resources.push_back(r);
      }
      if (param.caps && below(3) == 0) flow.cap = 0.1 + static_cast<double>(below(50)) / 10;
      live[solver.add_flow(flow.resources, flow.cap)] = flow;
    }
    for (size_t n = below(4); n-- > 0 && !live.empty();) {
      const auto gone = std::next(live.begin(), static_cast<ptrdiff_t>(below(live.size())));
      solver.remove_flow(gone->first);
      held_by.erase(gone->first);
      live.erase(gone);
    }
    for (const int32_t flow : solver.solve()) held_by[flow] = solver.bottleneck(flow);
    for (const int32_t resource : solver.moved()) level[resource] = solver.level(resource);

    std::vector<OracleFlow> flows;
    std::vector<int32_t> ids;
    for (const auto& [id, flow] : live) {
      flows.push_back(flow);
      ids.push_back(id);
    }
    const std::vector<double> expected = progressive_filling(capacity, flows);
    std::vector<double> used(capacity.size(), 0), fastest(capacity.size(), 0);
    for (size_t f = 0; f < flows.size(); ++f) {
      const double rate = solver.rate(ids[f]);
      ASSERT_NEAR(rate, expected[f], 1e-9 * expected[f]) << "change " << change;
      const int32_t by = held_by.at(ids[f]);
      ASSERT_EQ(by == MaxMin::kOwnCap ? flows[f].cap : level.at(by), rate)
          << "a change that was not reported";
      for (const int32_t r : flows[f].resources) {
        used[static_cast<size_t>(r)] += rate;
        fastest[static_cast<size_t>(r)] = std::max(fastest[static_cast<size_t>(r)], rate);
      }
    }
    for (size_t r = 0; r < capacity.size(); ++r) ASSERT_LE(used[r], capacity[r] * (1 + 1e-9));
    for (size_t f = 0; f < flows.size(); ++f) {
      const double rate = solver.rate(ids[f]);
      bool bottleneck = rate >= flows[f].cap;
      for (const int32_t resource : flows[f].resources) {
        const auto r = static_cast<size_t>(resource);
        bottleneck =
            bottleneck || (used[r] >= capacity[r] * (1 - 1e-9) && rate >= fastest[r] * (1 - 1e-9));
      }
      ASSERT_TRUE(bottleneck) << "change " << change << ": flow " << ids[f] << " could gain";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Systems, MaxMinRandom,
    ::testing::Values(RandomCase{1, 1, 200, false, true}, RandomCase{3, 2, 400, false, false},
                      RandomCase{8, 2, 400, true, false}, RandomCase{12, 4, 300, true, true},
                      RandomCase{12, 5, 300, false, true}, RandomCase{40, 3, 200, false, true},
                      RandomCase{40, 6, 200, true, false},
                      // Always locally, and never.
                      RandomCase{12, 4, 300, true, true, kInfinity},
                      RandomCase{40, 3, 200, false, true, kInfinity},
                      RandomCase{40, 6, 200, true, false, kInfinity},
                      RandomCase{8, 2, 400, true, false, 0}, RandomCase{12, 4, 300, true, true, 0},
                      RandomCase{12, 5, 300, false, true, 0},
                      RandomCase{40, 3, 200, false, true, 0}));

}  // namespace
}  // namespace refit
