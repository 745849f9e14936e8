#include "sim/search/search.h"

#include <fmt/core.h>

#include <array>

#include "base/error.h"
#include "plans/check.h"
#include "sim/cost/estimate.h"
#include "sim/search/strategies.h"
#include "sim/simulator/simulator.h"

namespace refit {
namespace {

constexpr std::array kStrategies = {
    Strategy{"relay",
             "enter each NVLink domain once, striped over its GPUs, then fan out over NVLink",
             plan_relay},
    Strategy{"direct", "each needer from one holder, links evenly loaded", plan_direct},
    Strategy{"striped",
             "NeMo RL xferdtensor_python: per tensor, stripes over replicas, then all-gather",
             plan_striped},
};

}  // namespace

std::span<const Strategy> all_strategies() { return kStrategies; }

const Strategy& find_strategy(const std::string& name) {
  std::string known;
  for (const Strategy& strategy : kStrategies) {
    if (name == strategy.name) return strategy;
    known += (known.empty() ? "" : ", ") + std::string(strategy.name);
  }
  fail("--strategy", "'" + name + "'", "one of " + known);
}

std::vector<std::pair<std::string, std::string>> list_strategies() {
  std::vector<std::pair<std::string, std::string>> result;
  for (const Strategy& strategy : kStrategies) result.emplace_back(strategy.name, strategy.summary);
  return result;
}

Plan search(const Problem& problem, const SearchOptions& options, const Progress& progress) {
  const auto report = [&](const char* phase, double part) {
    if (progress) progress(phase, part);
  };
  const Strategy& strategy = find_strategy(options.strategy);
  report("bound", 0);
  const LowerBound bound = cut_bound(problem.demand, problem.train, problem.gen, problem.fabric,
                                     problem.gpu_of_rank, link_rates(problem.fabric, problem.cost));
  report("plan", 0.1);
  Plan plan = strategy.plan(problem, options);
  report("check", 0.5);
  const std::vector<Fault> faults = check(plan);
  if (!faults.empty()) {
    throw Error(fmt::format("strategy {} made a wrong plan: {}", options.strategy,
                            print_fault(faults.front())),
                ErrorKind::kWork);
  }
  report("simulate", 0.7);
  plan.prediction = {.predicted_s = simulate(plan, problem.fabric, problem.cost).refit_s,
                     .estimated_s = estimate(plan, problem.fabric, problem.cost),
                     .lower_bound_s = bound.seconds,
                     .bound_reason = bound.reason};
  report("done", 1);
  return plan;
}

}  // namespace refit
