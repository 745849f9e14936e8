#pragma once

#include <string>
#include <vector>

#include "plans/plan.h"
#include "plans/plan_io.h"
#include "sim/cost/cost_model.h"
#include "sim/fabric/fabric.h"
#include "sim/search/compare.h"

namespace refit {

/// What a report shows.
struct ReportInput {
  const Plan& plan;
  const SavedPlan& saved;
  std::string path;  // of the plan, for the commands that the page gives
  const Fabric& fabric;
  const CostModel& cost;
  std::vector<ComparedPlan> others;  // other strategies on the same inputs
};

/// One self-contained HTML page on a plan: the answer, what binds, link loads, traffic between
/// nodes, timelines by rank and by link, other strategies, memory, and how to run it. It loads
/// nothing from elsewhere, follows the reader's light or dark preference and works by keyboard.
/// Simulates the plan (which has to pass `check`). A few MB at most, whatever the plan's size.
std::string report_html(const ReportInput& input);

}  // namespace refit
