#include "sim/simulator/fluid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/sim/simulator/oracle.h"

namespace refit {
namespace {

constexpr double kInfinity = MaxMin::kInfinity;

TEST(Fluid, AmountsAreCarriedOverRateChanges) {
  // One resource of 10. 50 alone for 2 s (30 left), then with another of 15 at 5 each: that one
  // ends at 2 + 3 = 5, the first has 15 left and needs 1.5 s more.
  Fluid fluid({10}, 1);
  std::vector<int32_t> ended;
  const int32_t first = fluid.start(0, 50, std::vector{0}, kInfinity);
  fluid.settle(0);
  EXPECT_DOUBLE_EQ(fluid.next_end(), 5);
  const int32_t second = fluid.start(2, 15, std::vector{0}, kInfinity);
  fluid.settle(2);
  EXPECT_DOUBLE_EQ(fluid.next_end(), 5);
  fluid.finish(5, ended);
  EXPECT_EQ(ended, std::vector{second});
  fluid.settle(5);
  EXPECT_DOUBLE_EQ(fluid.next_end(), 6.5);
  fluid.finish(6.5, ended);
  EXPECT_EQ(ended, (std::vector{second, first}));
  EXPECT_EQ(fluid.next_end(), kInfinity);
}

TEST(Fluid, EqualFlowsEndTogether) {
  Fluid fluid({3, 7}, 1);
  std::vector<int32_t> ended;
  for (int32_t flow = 0; flow < 130; ++flow) fluid.start(0, 1.0 / 3, std::vector{0}, kInfinity);
  fluid.start(0, 1, std::vector{1}, 1e-3);
  fluid.settle(0);
  fluid.finish(fluid.next_end(), ended);
  EXPECT_EQ(ended.size(), 130u);
  EXPECT_TRUE(std::ranges::is_sorted(ended));
}

TEST(Fluid, AgreesWithFillingEverythingAgainAtEveryEnd) {
  std::mt19937_64 random(5);
  constexpr int32_t kPorts = 6;
  std::vector<double> capacity;
  for (int32_t r = 0; r < 2 * kPorts; ++r)
    capacity.push_back(1 + static_cast<double>(random() % 9));
  Fluid fluid(capacity, 2);
  std::vector<OracleFlow> flows;
  std::vector<double> left;
  std::vector<int32_t> ids;
  for (int n = 0; n < 100; ++n) {
    const auto from = static_cast<int32_t>(random() % kPorts);
    const auto to = static_cast<int32_t>(kPorts + random() % kPorts);
    flows.push_back({{from, to}});
    if (n % 5 == 0) flows.back().cap = 0.3;
    left.push_back(1 + static_cast<double>(random() % 1000));
    ids.push_back(fluid.start(0, left.back(), flows.back().resources, flows.back().cap));
  }
  fluid.settle(0);

  double now = 0;
  while (!flows.empty()) {
    const std::vector<double> rate = progressive_filling(capacity, flows);
    double step = kInfinity;
    for (size_t f = 0; f < flows.size(); ++f) step = std::min(step, left[f] / rate[f]);
    now += step;
    ASSERT_NEAR(fluid.next_end(), now, 1e-9 * now);
    std::vector<int32_t> ended, expected;
    const double at = fluid.next_end();
    fluid.finish(at, ended);
    fluid.settle(at);
    for (size_t f = flows.size(); f-- > 0;) {
      left[f] -= rate[f] * step;
      if (left[f] > 1e-7) continue;
      expected.push_back(ids[f]);
      const auto at_f = static_cast<ptrdiff_t>(f);
      flows.erase(flows.begin() + at_f);
      left.erase(left.begin() + at_f);
      ids.erase(ids.begin() + at_f);
    }
    std::ranges::sort(expected);
    ASSERT_EQ(ended, expected);
  }
  EXPECT_EQ(fluid.next_end(), kInfinity);
}

}  // namespace
}  // namespace refit
