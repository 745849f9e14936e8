#include "sim/simulator/split.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

namespace refit {

TimeSplit split_time(std::span<const Interval> intervals, double total) {
  std::vector<std::tuple<double, size_t, int>> edges;
  edges.reserve(2 * intervals.size() + 1);
  for (const Interval& interval : intervals) {
    if (!(interval.from < interval.to)) continue;
    edges.emplace_back(interval.from, static_cast<size_t>(interval.activity), 1);
    edges.emplace_back(interval.to, static_cast<size_t>(interval.activity), -1);
  }
  edges.emplace_back(total, 0, 0);
  std::sort(edges.begin(), edges.end());

  std::array<int64_t, 3> active{};
  std::array<double, 4> seconds{};
  double now = 0;
  for (const auto& [time, activity, change] : edges) {
    const auto first = std::find_if(active.begin(), active.end(), [](int64_t n) { return n > 0; });
    seconds[static_cast<size_t>(first - active.begin())] += time - now;
    now = time;
    active[activity] += change;
  }
  return {seconds[0], seconds[1], seconds[2], seconds[3]};
}

}  // namespace refit
