#include "sim/simulator/split.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace refit {
namespace {

TEST(TimeSplit, NothingIsWaiting) {
  const TimeSplit split = split_time({}, 3);
  EXPECT_EQ(split.wait_s, 3);
  EXPECT_EQ(split.wire_s + split.staging_s + split.launch_s, 0);
}

TEST(TimeSplit, BruteForceOnWholeSeconds) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    constexpr int kTotal = 20;
    std::vector<Interval> intervals;
    for (uint64_t n = random() % 6; n-- > 0;) {
      const auto from = static_cast<int>(random() % kTotal);
      const int to = from + static_cast<int>(random() % static_cast<uint64_t>(kTotal - from + 1));
      intervals.push_back({static_cast<double>(from), static_cast<double>(to),
                           static_cast<Activity>(random() % 3)});
    }
    int seconds[4] = {};
    for (int second = 0; second < kTotal; ++second) {
      int first = 3;
      for (const Interval& interval : intervals) {
        if (interval.from <= second && second < interval.to) {
          first = std::min(first, static_cast<int>(interval.activity));
        }
      }
      ++seconds[first];
    }
    const TimeSplit split = split_time(intervals, kTotal);
    EXPECT_EQ(split.wire_s, seconds[0]);
    EXPECT_EQ(split.staging_s, seconds[1]);
    EXPECT_EQ(split.launch_s, seconds[2]);
    EXPECT_EQ(split.wait_s, seconds[3]);
  }
}

}  // namespace
}  // namespace refit
