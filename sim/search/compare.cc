#include "sim/search/compare.h"

#include "base/error.h"
#include "sim/search/strategies.h"
#include "sim/simulator/host_work.h"
#include "sim/simulator/simulator.h"

namespace refit {
namespace {

double schedule_time(const Problem& problem, const Plan& plan) {
  if (read_host_input(plan).empty()) return plan.prediction.predicted_s;
  CostModel cost = problem.cost;
  cost.host = {};
  return simulate(plan, problem.fabric, cost).refit_s;
}

}  // namespace

Comparison compare(const Problem& problem, const SearchOptions& options,
                   const std::vector<std::string>& strategies, const Progress& progress) {
  for (const std::string& name : strategies) find_strategy(name);
  if (progress) progress("bound", 0);
  Comparison comparison = {lower_bound(problem), {}};
  auto& [bound, rows] = comparison;
  for (const std::string& name : strategies) {
    if (progress)
      progress(name, static_cast<double>(rows.size()) / static_cast<double>(strategies.size()));
    ComparedPlan& row = rows.emplace_back();
    row.strategy = name;
    SearchOptions how = options;
    how.strategy = name;
    try {
      const Plan plan = search(problem, how, bound);
      row.prediction = plan.prediction;
      row.schedule_s = schedule_time(problem, plan);
      row.totals = plan_totals(plan);
    } catch (const Error& error) {
      row.error = error.what();
    }
  }
  if (progress) progress("done", 1);
  return comparison;
}

}  // namespace refit
