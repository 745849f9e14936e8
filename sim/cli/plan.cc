// refit plan, compare, bound: from inputs to plans.

#include <fmt/core.h>

#include <chrono>
#include <optional>

#include "base/units.h"
#include "plans/plan_io.h"
#include "sim/cli/commands.h"
#include "sim/cli/print.h"
#include "sim/cli/results.h"
#include "sim/search/strategies.h"

namespace refit::cli {
namespace {

Problem load(const Common& common, const InputSpec& inputs) {
  std::vector<std::string> notes;
  Problem problem = during(common.quiet, "read", [&] { return load_problem(inputs, &notes); });
  log_notes(common.quiet, notes);
  return problem;
}

void print_problem(const Problem& problem) {
  fmt::print("model    {}: {}, {} tensors, {} classes\n", problem.model.name,
             print_bytes(static_cast<double>(problem.weight_bytes)), problem.model.tensors.size(),
             problem.demand.classes.size());
  fmt::print("train    {}: {} ranks\n", problem.train.spec, problem.train.ranks.size());
  fmt::print("gen      {}: {} ranks need {}\n", problem.gen.spec, problem.gen.ranks.size(),
             print_bytes(static_cast<double>(problem.demand.bytes)));
  fmt::print("fabric   {}: {} nodes, {} GPUs; cost model {}\n", problem.fabric.name,
             problem.fabric.nodes.size(), problem.fabric.gpus.size(), problem.cost.name);
}

}  // namespace

int run_plan(const Common& common, const PlanOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Problem problem = load(common, options.inputs);
  const Progress progress = make_progress(common.quiet);
  if (progress) progress("bound", 0);
  const LowerBound bound = lower_bound(problem);
  const Plan plan = search(problem, options.search, bound, progress);
  const std::chrono::duration<double> search_time = std::chrono::steady_clock::now() - start;
  const SavedPlan saved =
      options.output.empty() ? measure_plan(plan) : save_plan(plan, options.output);
  const PlanTotals totals = plan_totals(plan);
  const Prediction& prediction = plan.prediction;
  if (common.json) {
    fmt::print("{}\n", plan_json(problem, plan, saved, search_time.count()));
    return 0;
  }
  print_problem(problem);
  fmt::print("\npredicted    {}  ({} strategy; {} estimated in closed form)\n",
             print_time(prediction.predicted_s), plan.strategy, print_time(prediction.estimated_s));
  fmt::print("lower bound  {}  {}\n", print_time(prediction.lower_bound_s),
             prediction.bound_reason);
  print_binding(bound.binding);
  const std::optional<double> ratio = ratio_to_bound(prediction);
  fmt::print("gap          {}\n", ratio ? print_percent(*ratio - 1) : "-");
  print_text(fmt::format(
      "moves        {} between and {} inside NVLink domains in {} transfers; {} copied locally\n",
      print_bytes(static_cast<double>(totals.bytes_inter_domain)),
      print_bytes(static_cast<double>(totals.bytes_intra_domain)), totals.transfers,
      print_bytes(static_cast<double>(totals.bytes_copied))));
  fmt::print("staging      {} at most on a rank (bound {}); {} network peers at most{}\n",
             print_bytes(static_cast<double>(totals.peak_staging_bytes)),
             print_bytes(static_cast<double>(plan.staging_bytes)), totals.max_peers,
             plan.max_peers > 0 ? fmt::format(" (bound {})", plan.max_peers) : "");
  fmt::print("search       {} and {} of memory\n", print_time(search_time.count()),
             print_bytes(static_cast<double>(peak_memory())));
  if (options.output.empty()) {
    fmt::print("plan         not saved (give -o FILE)\n");
  } else {
    fmt::print("plan         {}  {}  digest {}\n", options.output,
               print_bytes(static_cast<double>(saved.bytes)), saved.digest.substr(0, 16));
  }
  return 0;
}

int run_compare(const Common& common, const CompareOptions& options) {
  const Problem problem = load(common, options.inputs);
  std::vector<std::string> names = options.strategies;
  if (names.empty()) {
    for (const auto& [name, summary] : list_strategies()) names.push_back(name);
  }
  const Comparison comparison =
      compare(problem, options.search, names, make_progress(common.quiet));
  std::vector<std::vector<std::string>> table;
  bool failed = false;
  for (const ComparedPlan& row : comparison.rows) {
    if (!row.error.empty()) {
      table.push_back({row.strategy, row.error});
      // That a peer's schedule does not serve every layout is a result; so is that only `refit`
      // changes its shape for a bound on peers.
      const Strategy& strategy = find_strategy(row.strategy);
      failed = failed || (!strategy.baseline &&
                          (options.search.max_peers == 0 || strategy.plan == plan_refit));
      continue;
    }
    const std::optional<double> ratio = ratio_to_bound(row.prediction);
    table.push_back({row.strategy, print_time(row.prediction.predicted_s),
                     ratio ? print_ratio(*ratio) : "-",
                     print_bytes(static_cast<double>(row.totals.bytes_inter_domain)),
                     print_bytes(static_cast<double>(row.totals.bytes_intra_domain)),
                     fmt::format("{}", row.totals.transfers)});
  }
  const int code = failed ? 1 : 0;
  if (common.json) {
    fmt::print("{}\n", compare_json(comparison));
    return code;
  }
  print_problem(problem);
  fmt::print("\n");
  print_table(
      {"strategy", "predicted", "x bound", "between domains", "inside domains", "transfers"},
      table);
  fmt::print("\n  lower bound {}: {}\n", print_time(comparison.bound.seconds),
             comparison.bound.reason);
  return code;
}

int run_bound(const Common& common, const InputSpec& inputs) {
  const Problem problem = load(common, inputs);
  const LowerBound bound = lower_bound(problem);
  if (common.json) {
    fmt::print("{}\n", bound_json(bound));
    return 0;
  }
  print_problem(problem);
  fmt::print("\nlower bound  {}  {}\n", print_time(bound.seconds), bound.reason);
  print_binding(bound.binding);
  if (bound.fluid_s > 0) {
    fmt::print("fluid        {}  what routing alone reaches, without order and start-ups\n",
               print_time(bound.fluid_s));
  }
  return 0;
}

}  // namespace refit::cli
