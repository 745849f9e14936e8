// refit report: a plan as a page.

#include "sim/report/report.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/units.h"
#include "sim/cli/print.h"
#include "sim/cli/simulation.h"
#include "sim/search/compare.h"

namespace refit::cli {
namespace {

/// Plans up to this size are compared with all strategies unasked: that takes seconds.
constexpr int64_t kSmallPlan = 20000;

std::vector<std::string> strategies_to_compare(const ReportOptions& options, const Plan& plan) {
  if (options.strategies == std::vector<std::string>{"none"}) return {};
  if (!options.strategies.empty() || plan_totals(plan).transfers > kSmallPlan)
    return options.strategies;
  std::vector<std::string> names;
  for (const auto& [name, summary] : list_strategies()) {
    if (name != plan.strategy) names.push_back(name);
  }
  return names;
}

}  // namespace

int run_report(const Common& common, const ReportOptions& options) {
  const LoadedPlan loaded =
      during(common.quiet, "check", [&] { return load_checked(options.plan); });
  std::vector<ComparedPlan> others;
  const std::vector<std::string> names = strategies_to_compare(options, loaded.plan);
  if (!names.empty()) {
    others = compare(reload_problem(loaded.plan),
                     {.seed = loaded.plan.seed, .staging_bytes = loaded.plan.staging_bytes}, names,
                     make_progress(common.quiet))
                 .rows;
  }
  const PlanWorld world = load_world(loaded.plan);
  const std::string page = during(common.quiet, "simulate", [&] {
    return report_html({.plan = loaded.plan,
                        .saved = loaded.saved,
                        .path = options.plan,
                        .fabric = world.fabric,
                        .cost = world.cost,
                        .others = others});
  });
  write_file(options.output, page);
  if (common.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"output", options.output},
                                              {"bytes", page.size()},
                                              {"digest", loaded.saved.digest}}
                           .dump(2));
  } else {
    fmt::print("{}: {}\n", options.output, print_bytes(static_cast<double>(page.size())));
  }
  return 0;
}

}  // namespace refit::cli
