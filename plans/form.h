#pragma once

#include <cstdint>
#include <string>

#include "plans/plan.h"

namespace refit {

// What makes a plan safe to walk: ids are in range, boxes lie in their areas, sizes fit into 64
// bits. The functions of plan.h and everything that interprets plans rely on it. save_plan and
// load_plan insist on it; `check` starts with it.

/// Largest sizes: elements of a tensor or buffer, bytes that one rank sends, receives and stages,
/// ranks. Sums over a plan then fit into int64_t.
inline constexpr int64_t kMaxElements = int64_t{1} << 56;
inline constexpr int64_t kMaxRankBytes = int64_t{1} << 44;
inline constexpr int32_t kMaxRanks = 1 << 18;

/// The first thing wrong with everything but the programs, or "".
std::string find_malformed(const Plan& plan);

/// The first thing wrong with the program of a rank, or "". The rest of the plan has to be
/// well-formed.
std::string find_malformed(const Plan& plan, int32_t rank);

}  // namespace refit
