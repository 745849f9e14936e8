#include "sim/search/search.h"

#include <fmt/core.h>

#include <array>
#include <future>

#include "base/error.h"
#include "plans/check.h"
#include "sim/cost/estimate.h"
#include "sim/search/casting.h"
#include "sim/search/strategies.h"
#include "sim/simulator/simulator.h"

namespace refit {
namespace {

constexpr std::array kStrategies = {
    Strategy{"refit",
             "ours: balance the whole model, enter each domain once, pass on where sources bind",
             plan_refit},
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

std::vector<double> usable_rates(const Problem& problem) {
  std::vector<double> rates = link_rates(problem.fabric, problem.cost);
  std::vector<bool> used(rates.size(), false), owned(rates.size(), false);
  std::vector<bool> has_rank(problem.fabric.gpus.size(), false);
  for (const int32_t gpu : problem.gpu_of_rank) {
    if (gpu >= 0) has_rank[static_cast<size_t>(gpu)] = true;
  }
  for (size_t g = 0; g < problem.fabric.gpus.size(); ++g) {
    const Gpu& gpu = problem.fabric.gpus[g];
    std::vector<int32_t> links = {gpu.nvlink_out, gpu.nvlink_in};
    for (const int32_t nic : gpu.nics) {
      links.push_back(problem.fabric.nics[static_cast<size_t>(nic)].out);
      links.push_back(problem.fabric.nics[static_cast<size_t>(nic)].in);
    }
    for (const int32_t link : links) {
      if (link < 0) continue;
      owned[static_cast<size_t>(link)] = true;
      if (has_rank[g]) used[static_cast<size_t>(link)] = true;
    }
  }
  for (size_t link = 0; link < rates.size(); ++link) {
    if (owned[link] && !used[link]) rates[link] = 0;
  }
  return rates;
}

LowerBound lower_bound(const Problem& problem) {
  return cut_bound(problem.demand, problem.train, problem.gen, problem.fabric, problem.gpu_of_rank,
                   usable_rates(problem));
}

Plan search(const Problem& problem, const SearchOptions& options, const Progress& progress) {
  const auto report = [&](const char* phase, double part) {
    if (progress) progress(phase, part);
  };
  const Strategy& strategy = find_strategy(options.strategy);
  report("bound", 0);
  const LowerBound bound = lower_bound(problem);
  report("plan", 0.1);
  Plan plan = plan_with_casts(problem, strategy, options);
  report("check, simulate", 0.5);
  // Neither changes the plan, and each takes seconds where plans are large.
  std::future<double> simulated = std::async(std::launch::async, [&] {
    const double known = plan.prediction.predicted_s;
    return known > 0 ? known : simulate(plan, problem.fabric, problem.cost).refit_s;
  });
  const std::vector<Fault> faults = check(plan);
  if (!faults.empty()) {
    throw Error(fmt::format("strategy {} made a wrong plan: {}", options.strategy,
                            print_fault(faults.front())),
                ErrorKind::kWork);
  }
  plan.prediction = {.predicted_s = simulated.get(),
                     .estimated_s = estimate(plan, problem.fabric, problem.cost),
                     .lower_bound_s = bound.seconds,
                     .bound_reason = bound.reason};
  report("done", 1);
  return plan;
}

}  // namespace refit
