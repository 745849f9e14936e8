#pragma once

#include <string>
#include <vector>

#include "plans/plan.h"
#include "sim/search/search.h"

namespace refit {

/// How one strategy fares.
struct ComparedPlan {
  std::string strategy;
  std::string error;  // why it cannot serve this problem; the rest is then empty
  Prediction prediction;
  double schedule_s = 0;  // predicted without the host work of a peer's framework
  PlanTotals totals;
};

struct Comparison {
  LowerBound bound;
  std::vector<ComparedPlan> rows;
};

/// Plans the problem with each of the strategies, all by the same code; `options.strategy` is not
/// looked at. An unknown name fails before the work; a strategy that cannot serve the problem says
/// why in its row.
Comparison compare(const Problem& problem, const SearchOptions& options,
                   const std::vector<std::string>& strategies, const Progress& progress = {});

}  // namespace refit
