// refit plan, compare, bound: from inputs to plans.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/console.h"
#include "base/error.h"
#include "base/units.h"
#include "plans/plan_io.h"
#include "sim/cli/commands.h"
#include "sim/cli/print.h"
#include "sim/search/strategies.h"

namespace refit::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Without a bound (nothing has to move) there is no ratio.
std::optional<double> ratio_to_bound(const Prediction& prediction) {
  if (prediction.lower_bound_s <= 0) return std::nullopt;
  return prediction.predicted_s / prediction.lower_bound_s;
}

int64_t count_ranks(const Plan& plan) {
  return std::count_if(plan.ranks.begin(), plan.ranks.end(),
                       [](const PlanRank& rank) { return rank.gpu >= 0; });
}

Problem load(const Common& common, const InputSpec& inputs) {
  std::vector<std::string> notes;
  Problem problem = load_problem(inputs, &notes);
  if (!common.quiet) {
    for (const std::string& note : notes) log_line("note: " + note);
  }
  return problem;
}

void print_problem(const Problem& problem) {
  fmt::print("model    {}: {}, {} tensors, {} classes\n", problem.model.name,
             print_bytes(static_cast<double>(model_bytes(problem.model))),
             problem.model.tensors.size(), problem.demand.classes.size());
  fmt::print("train    {}: {} ranks\n", problem.train.spec, problem.train.ranks.size());
  fmt::print("gen      {}: {} ranks need {}\n", problem.gen.spec, problem.gen.ranks.size(),
             print_bytes(static_cast<double>(problem.demand.bytes)));
  fmt::print("fabric   {}: {} nodes, {} GPUs; cost model {}\n", problem.fabric.name,
             problem.fabric.nodes.size(), problem.fabric.gpus.size(), problem.cost.name);
}

Json row_json(const Plan& plan, const PlanTotals& totals) {
  const std::optional<double> ratio = ratio_to_bound(plan.prediction);
  return {{"strategy", plan.strategy},
          {"predicted_s", plan.prediction.predicted_s},
          {"lower_bound_s", plan.prediction.lower_bound_s},
          {"gap", ratio ? Json(*ratio - 1) : Json()},
          {"estimated_s", plan.prediction.estimated_s},
          {"transfers", totals.transfers},
          {"bytes_total", totals.bytes_total},
          {"bytes_inter_domain", totals.bytes_inter_domain},
          {"bytes_intra_domain", totals.bytes_intra_domain},
          {"peak_staging_bytes", totals.peak_staging_bytes},
          {"max_peers", totals.max_peers}};
}

}  // namespace

int run_plan(const Common& common, const PlanOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Problem problem = load(common, options.inputs);
  const Plan plan = search(problem, options.search, make_progress(common.quiet));
  const std::chrono::duration<double> search_time = std::chrono::steady_clock::now() - start;
  const SavedPlan saved =
      options.output.empty() ? measure_plan(plan) : save_plan(plan, options.output);
  const PlanTotals totals = plan_totals(plan);
  const Prediction& prediction = plan.prediction;
  if (common.json) {
    Json json = row_json(plan, totals);
    json["bound_reason"] = prediction.bound_reason;
    json["ranks"] = count_ranks(plan);
    json["tensors"] = plan.tensors.size();
    json["classes"] = problem.demand.classes.size();
    json["model_bytes"] = model_bytes(problem.model);
    json["demand_bytes"] = problem.demand.bytes;
    json["plan_bytes"] = saved.bytes;
    json["search_s"] = search_time.count();
    json["peak_memory_bytes"] = peak_memory();
    json["digest"] = saved.digest;
    fmt::print("{}\n", json.dump(2));
    return 0;
  }
  print_problem(problem);
  fmt::print("\npredicted    {}  ({} strategy; {} estimated in closed form)\n",
             print_time(prediction.predicted_s), plan.strategy, print_time(prediction.estimated_s));
  fmt::print("lower bound  {}  {}\n", print_time(prediction.lower_bound_s),
             prediction.bound_reason);
  const std::optional<double> ratio = ratio_to_bound(prediction);
  fmt::print("gap          {}\n", ratio ? print_percent(*ratio - 1) : "-");
  fmt::print(
      "moves        {} between and {} inside NVLink domains in {} transfers; {} copied locally\n",
      print_bytes(static_cast<double>(totals.bytes_inter_domain)),
      print_bytes(static_cast<double>(totals.bytes_intra_domain)), totals.transfers,
      print_bytes(static_cast<double>(totals.bytes_copied)));
  fmt::print("staging      {} at most on a rank (bound {}); {} network peers at most\n",
             print_bytes(static_cast<double>(totals.peak_staging_bytes)),
             print_bytes(static_cast<double>(plan.staging_bytes)), totals.max_peers);
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
  for (const std::string& name : names)
    find_strategy(name);  // a wrong name is known before the work
  const LowerBound bound = lower_bound(problem);
  Json rows = Json::array();
  std::vector<std::vector<std::string>> table;
  std::string failures;
  for (const std::string& name : names) {
    SearchOptions search_options = options.search;
    search_options.strategy = name;
    Plan plan;
    try {
      plan = search(problem, search_options, make_progress(common.quiet));
    } catch (const Error& error) {  // the others still have something to say
      rows.push_back({{"strategy", name}, {"error", error.what()}});
      table.push_back({name, "-", "-", "-", "-", "-"});
      failures += fmt::format("  {}: {}\n", name, error.what());
      continue;
    }
    const PlanTotals totals = plan_totals(plan);
    const std::optional<double> ratio = ratio_to_bound(plan.prediction);
    rows.push_back(row_json(plan, totals));
    table.push_back({name, print_time(plan.prediction.predicted_s),
                     ratio ? print_ratio(*ratio) : "-",
                     print_bytes(static_cast<double>(totals.bytes_inter_domain)),
                     print_bytes(static_cast<double>(totals.bytes_intra_domain)),
                     fmt::format("{}", totals.transfers)});
  }
  const int code = failures.empty() ? 0 : 1;
  if (common.json) {
    fmt::print(
        "{}\n",
        Json{{"lower_bound_s", bound.seconds}, {"bound_reason", bound.reason}, {"rows", rows}}.dump(
            2));
    return code;
  }
  print_problem(problem);
  fmt::print("\n");
  print_table(
      {"strategy", "predicted", "x bound", "between domains", "inside domains", "transfers"},
      table);
  fmt::print("\n  lower bound {}: {}\n{}", print_time(bound.seconds), bound.reason, failures);
  return code;
}

int run_bound(const Common& common, const InputSpec& inputs) {
  const Problem problem = load(common, inputs);
  const LowerBound bound = lower_bound(problem);
  if (common.json) {
    fmt::print("{}\n", Json{{"lower_bound_s", bound.seconds},
                            {"bound_reason", bound.reason},
                            {"bytes", bound.cut.bytes},
                            {"capacity_bytes_per_s", bound.cut.capacity}}
                           .dump(2));
    return 0;
  }
  print_problem(problem);
  fmt::print("\nlower bound  {}  {}\n", print_time(bound.seconds), bound.reason);
  return 0;
}

}  // namespace refit::cli
