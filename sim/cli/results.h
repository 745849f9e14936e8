#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plans/plan_io.h"
#include "sim/search/compare.h"
#include "sim/search/search.h"
#include "sim/simulator/simulator.h"

namespace refit::cli {

// Results as JSON text, for `--json` and for Python (DESIGN.md section 8 names the keys).

/// predicted / lower bound; none where nothing has to move.
std::optional<double> ratio_to_bound(const Prediction& prediction);

std::string plan_json(const Problem& problem, const Plan& plan, const SavedPlan& saved,
                      double search_s);
/// Of a plan from a file: without what only planning knows.
std::string saved_plan_json(const Plan& plan, const SavedPlan& saved);
std::string compare_json(const Comparison& comparison);
std::string bound_json(const LowerBound& bound);
/// A list of what binds: what, its share, its links.
std::string binding_json(const std::vector<PriceGroup>& binding);

}  // namespace refit::cli
