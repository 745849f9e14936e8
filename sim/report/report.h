#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plans/plan.h"
#include "plans/plan_io.h"
#include "sim/cost/cost_model.h"
#include "sim/fabric/fabric.h"

namespace refit {

/// How another strategy fares on the same inputs.
struct ReportRow {
  std::string strategy;
  std::optional<double> predicted_s;  // none: it cannot serve these layouts
  std::string error;
  PlanTotals totals;
};

/// What a report shows.
struct ReportInput {
  const Plan& plan;
  const SavedPlan& saved;
  std::string path;  // of the plan, for the commands that the page gives
  const Fabric& fabric;
  const CostModel& cost;
  std::vector<ReportRow> others;
};

/// One self-contained HTML page on a plan: the answer, what binds, link loads, traffic between
/// nodes, timelines by rank and by link, other strategies, memory, and how to run it. It loads
/// nothing from elsewhere, follows the reader's light or dark preference and works by keyboard.
/// Simulates the plan (which has to pass `check`). A few MB at most, whatever the plan's size.
std::string report_html(const ReportInput& input);

}  // namespace refit
