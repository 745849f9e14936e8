#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "sim/layout/layout.h"

namespace refit::testing {

/// The same numbers on every machine: the library's distributions differ.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t in(int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(engine_() % static_cast<uint64_t>(hi - lo + 1));
  }
  bool one_of(int64_t n) { return in(1, n) == 1; }
  template <typename T, size_t kCount>
  T of(const T (&values)[kCount]) {
    return values[in(0, kCount - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

/// Tensor t has map t.
inline Layout layout_of(std::vector<RankMap> maps, std::vector<int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  Layout layout;
  layout.spec = "random";
  layout.ranks = std::move(ranks);
  for (int32_t t = 0; t < std::ssize(maps); ++t) layout.tensor_map.push_back(t);
  layout.maps = std::move(maps);
  return layout;
}

}  // namespace refit::testing
