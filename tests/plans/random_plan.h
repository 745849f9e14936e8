#pragma once

#include <random>

#include "flat_plan.h"

namespace refit {

using Random = std::mt19937_64;

/// Uniform in [lo, hi]. Not std::uniform_int_distribution: the same numbers with every library.
inline int64_t pick(Random& random, int64_t lo, int64_t hi) {
  return lo + static_cast<int64_t>(random() % static_cast<uint64_t>(hi - lo + 1));
}

/// Parts of a box after `cuts` random cuts; `even`: the last dimension is cut between pairs.
std::vector<Box> cut_box(Random& random, const Box& box, int64_t cuts, bool even);

/// Step ids of random plans are multiples of this, so that others fit between them.
inline constexpr int32_t kStepGap = 4;

/// A small plan, right by construction: 3 to 6 ranks, a few tensors, pieces sent directly, through
/// staging slots that are reused, and onwards from gen shards; up to 3 channels with all waits they
/// need.
FlatPlan make_random_plan(Random& random);

}  // namespace refit
