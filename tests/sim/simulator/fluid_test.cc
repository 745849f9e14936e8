#include "sim/simulator/fluid.h"

#include <gtest/gtest.h>

#include <numeric>
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
  const int32_t first = fluid.start(50, std::vector{0}, kInfinity);
  fluid.settle(0);
  EXPECT_DOUBLE_EQ(fluid.next_end(), 5);
  const int32_t second = fluid.start(15, std::vector{0}, kInfinity);
  fluid.settle(2);
  EXPECT_DOUBLE_EQ(fluid.next_end(), 5);
  fluid.finish(5, ended);
  EXPECT_EQ(ended, std::vector{second});
  fluid.settle(5);
  EXPECT_DOUBLE_EQ(fluid.next_end(), 6.5);
  fluid.finish(6.5, ended);
  EXPECT_EQ(ended, (std::vector{second, first}));
  fluid.settle(6.5);
  EXPECT_EQ(fluid.next_end(), kInfinity);
}

TEST(Fluid, EqualFlowsEndTogether) {
  Fluid fluid({3, 7}, 1);
  std::vector<int32_t> ended;
  for (int32_t flow = 0; flow < 130; ++flow) fluid.start(1.0 / 3, std::vector{0}, kInfinity);
  fluid.start(1, std::vector{1}, 1e-3);
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
    ids.push_back(fluid.start(left.back(), flows.back().resources, flows.back().cap));
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

TEST(Fluid, WithAnErrorEndsTogetherWhatEndsAlmostTogether) {
  // 5 each. With 1 % the 100 has to end at 101 / 5 = 20.2 and the 102 may from 102 x 0.99 / 5 =
  // 20.196 on; the 103 not before 103 x 0.99 / 5 = 20.394. That one has 103 x 1.01 - 101 = 3.03
  // left when it has 10 for itself, and then has to end at 20.503.
  Fluid fluid({10, 5}, 1, 0.01);
  std::vector<int32_t> ended;
  const int32_t first = fluid.start(100, std::vector{0}, 5);
  const int32_t second = fluid.start(102, std::vector{1}, kInfinity);
  const int32_t third = fluid.start(103, std::vector{0}, kInfinity);
  fluid.settle(0);
  EXPECT_DOUBLE_EQ(fluid.next_end(), 20.2);
  fluid.finish(20.2, ended);
  EXPECT_EQ(ended, (std::vector{first, second}));
  fluid.settle(20.2);
  EXPECT_DOUBLE_EQ(fluid.next_end(), 20.503);
  fluid.finish(20.503, ended);
  EXPECT_EQ(ended, (std::vector{first, second, third}));
}

TEST(Fluid, WithAnErrorIsExactForAmountsThatDifferByIt) {
  // What passes is summed up from the oracle's rates: within the error of what was asked for. An
  // exact run with what has passed then ends the same flows at the same times.
  constexpr double kError = 0.03;
  constexpr int32_t kPorts = 8, kFlows = 150;
  std::mt19937_64 random(6);
  std::vector<double> capacity;
  for (int32_t r = 0; r < 2 * kPorts; ++r)
    capacity.push_back(1 + static_cast<double>(random() % 9));
  std::vector<OracleFlow> flows;
  std::vector<double> amount, passed(kFlows, 0), end(kFlows, 0);
  Fluid batched(capacity, 2, kError);
  for (int32_t n = 0; n < kFlows; ++n) {
    const auto from = static_cast<int32_t>(random() % kPorts);
    const auto to = static_cast<int32_t>(kPorts + random() % kPorts);
    flows.push_back({{from, to}});
    if (n % 5 == 0) flows.back().cap = 0.3;
    amount.push_back(1 + static_cast<double>(random() % 1000));
    batched.start(amount.back(), flows.back().resources, flows.back().cap);
  }
  batched.settle(0);
  std::vector<int32_t> live(kFlows), ended;
  std::iota(live.begin(), live.end(), 0);
  int batches = 0;
  for (double now = 0; !live.empty(); ++batches) {
    std::vector<OracleFlow> flowing;
    for (const int32_t flow : live) flowing.push_back(flows[static_cast<size_t>(flow)]);
    const std::vector<double> rate = progressive_filling(capacity, flowing);
    const double next = batched.next_end();
    for (size_t i = 0; i < live.size(); ++i)
      passed[static_cast<size_t>(live[i])] += rate[i] * (next - now);
    now = next;
    ended.clear();
    batched.finish(now, ended);
    ASSERT_FALSE(ended.empty());
    for (const int32_t flow : ended) end[static_cast<size_t>(flow)] = now;
    std::erase_if(live, [&](int32_t flow) { return std::ranges::count(ended, flow) > 0; });
    for (const int32_t flow : ended) {
      const auto f = static_cast<size_t>(flow);
      EXPECT_GE(passed[f], amount[f] * (1 - kError) - 1e-7);
      EXPECT_LE(passed[f], amount[f] * (1 + kError) + 1e-7);
    }
    batched.settle(now);
  }
  EXPECT_LT(batches, kFlows * 2 / 3);

  Fluid exact(capacity, 2);
  for (size_t f = 0; f < flows.size(); ++f)
    exact.start(passed[f], flows[f].resources, flows[f].cap);
  exact.settle(0);
  for (int32_t count = 0; count < kFlows;) {
    const double now = exact.next_end();
    ended.clear();
    exact.finish(now, ended);
    exact.settle(now);
    for (const int32_t flow : ended) EXPECT_NEAR(now, end[static_cast<size_t>(flow)], 1e-9 * now);
    count += static_cast<int32_t>(std::ssize(ended));
  }
}

}  // namespace
}  // namespace refit
