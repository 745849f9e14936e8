#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace refit {

struct OracleFlow {
  std::vector<int32_t> resources;
  double cap = std::numeric_limits<double>::infinity();
};

/// Max-min rates by the textbook: lift all flows that are not frozen by the most that every
/// resource and cap allows, freeze those that hit something, again. O(flows^2 x resources).
inline std::vector<double> progressive_filling(const std::vector<double>& capacity,
                                               const std::vector<OracleFlow>& flows) {
  std::vector<double> rate(flows.size(), 0);
  std::vector<bool> frozen(flows.size(), false);
  for (size_t left = flows.size(); left > 0;) {
    double lift = std::numeric_limits<double>::infinity();
    std::vector<double> room(capacity.size());
    for (size_t r = 0; r < capacity.size(); ++r) {
      double used = 0;
      int active = 0;
      for (size_t f = 0; f < flows.size(); ++f) {
        if (std::ranges::count(flows[f].resources, static_cast<int32_t>(r)) == 0) continue;
        used += rate[f];
        active += frozen[f] ? 0 : 1;
      }
      room[r] =
          active > 0 ? (capacity[r] - used) / active : std::numeric_limits<double>::infinity();
      lift = std::min(lift, room[r]);
    }
    for (size_t f = 0; f < flows.size(); ++f) {
      if (!frozen[f]) lift = std::min(lift, flows[f].cap - rate[f]);
    }
    const double slop = 1e-12 * capacity[0];
    for (size_t f = 0; f < flows.size(); ++f) {
      if (frozen[f]) continue;
      rate[f] += lift;
      bool hit = rate[f] >= flows[f].cap - slop;
      for (const int32_t r : flows[f].resources) {
        hit = hit || room[static_cast<size_t>(r)] <= lift + slop;
      }
      if (hit) {
        frozen[f] = true;
        --left;
      }
    }
  }
  return rate;
}

}  // namespace refit
