#include "sim/search/search.h"

#include <fmt/core.h>

#include <array>
#include <future>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "plans/check.h"
#include "sim/cost/estimate.h"
#include "sim/search/baselines.h"
#include "sim/search/casting.h"
#include "sim/search/peers.h"
#include "sim/search/strategies.h"
#include "sim/simulator/simulator.h"

namespace refit {
namespace {

constexpr std::array kStrategies = {
    Strategy{"refit",
             "ours: balance the whole model, enter each domain once, pass on where sources bind",
             "", false, plan_refit},
    Strategy{"relay",
             "enter each NVLink domain once, striped over its GPUs, then fan out over NVLink", "",
             false, plan_relay},
    Strategy{"direct", "each needer from one holder, links evenly loaded", "", false, plan_direct},
    Strategy{"broadcast", "vLLM, verl nccl: gather on rank 0, packed broadcast of whole tensors",
             "", true, plan_with<make_broadcast>},
    Strategy{"staged-broadcast", "slime: a root per pipeline stage, one bucket at a time", "", true,
             plan_with<make_staged_broadcast>},
    Strategy{"relay-broadcast", "verl multi_sender: the root's node relays the broadcast", "", true,
             plan_with<make_relay_broadcast>},
    Strategy{"chain-broadcast", "verl nixl, mooncake: bucket by bucket from rank to rank", "", true,
             plan_with<make_chain_broadcast>},
    Strategy{"striped",
             "NeMo RL xferdtensor_python: per tensor, stripes over replicas, then all-gather", "",
             true, plan_with<make_striped>},
    Strategy{"m2n-direct", "NCCL M2N DIRECT: every overlap to every replica", "lb=uniform|node",
             true, plan_with<make_m2n_direct>},
    Strategy{"m2n-chain", "NCCL M2N ring kernel: to one replica, NVLink fan-out, on to next domain",
             "lb=node|uniform", true, plan_with<make_m2n_chain>},
    Strategy{"megatron", "Megatron-core: replica by the receiver's number, all at once", "", true,
             plan_with<make_megatron>},
    Strategy{"megatron-colored", "Megatron-core nvshmem: batches coloured into iterations", "",
             true, plan_with<make_megatron_colored>},
    Strategy{"pull-first", "ModelExpress: all read from the first holder, whole shards if strided",
             "", true, plan_with<make_pull_first>},
    Strategy{"pull-balanced", "vLLM sharded_rdt: block by block from the least loaded holder", "",
             true, plan_with<make_pull_balanced>},
    Strategy{"modulo", "awex: replica i from replica i mod n, all at once", "", true,
             plan_with<make_modulo>},
    Strategy{"miles", "miles P2P: each rank of a stage gathers it and writes to its engine ranks",
             "", true, plan_with<make_miles>},
    Strategy{"alpa", "AlpaComm: broadcasts, sender and order by search on one NIC per host",
             "order=greedy|dfs", true, plan_with<make_alpa>},
};

// Parts of the work, for progress: what is done before the first schedule, and before the checks.
constexpr double kRouted = 0.1, kTried = 0.7;

/// A plan that may depend on the machine says so.
void mark_deadline(Plan& plan, double seconds) {
  for (auto& [name, text] : plan.inputs) {
    if (name != "options") continue;
    nlohmann::ordered_json json = nlohmann::ordered_json::parse(text);
    json["deadline_s"] = seconds;
    text = json.dump(1, ' ', true);
  }
}

}  // namespace

void set_deadline(SearchOptions& options, const std::string& text, const std::string& place) {
  constexpr std::string_view kAttempts = "it";
  if (text.ends_with(kAttempts)) {
    const std::string count = text.substr(0, text.size() - kAttempts.size());
    options.attempts = static_cast<int32_t>(parse_int(count, 1, 1 << 30, place));
    return;
  }
  options.deadline_s = parse_time(text, place);
  if (options.deadline_s <= 0) fail(place, text, "a time, as in 10s, or attempts, as in 200it");
}

std::span<const Strategy> all_strategies() { return kStrategies; }

const Strategy& find_strategy(const std::string& text) { return *parse_choice(text).strategy; }

std::vector<std::pair<std::string, std::string>> list_strategies() {
  std::vector<std::pair<std::string, std::string>> result;
  for (const Strategy& strategy : kStrategies) {
    std::string summary = strategy.summary;
    if (*strategy.option != 0) summary += std::string(" (:") + strategy.option + ")";
    result.emplace_back(strategy.name, summary);
  }
  return result;
}

std::vector<double> usable_rates(const Problem& problem) {
  std::vector<double> rates = link_rates(problem.fabric, problem.cost);
  std::vector<bool> used(rates.size(), false), owned(rates.size(), false);
  std::vector<bool> has_rank(problem.fabric.gpus.size(), false);
  for (const int32_t gpu : problem.gpu_of_rank) {
    if (gpu >= 0) has_rank[static_cast<size_t>(gpu)] = true;
  }
  // A GPU without a NIC of its own goes over any of its peers (route), ranks or not.
  std::vector<bool> in_use = has_rank;
  for (size_t g = 0; g < problem.fabric.gpus.size(); ++g) {
    const Gpu& gpu = problem.fabric.gpus[g];
    if (!has_rank[g] || !gpu.nics.empty()) continue;
    for (const int32_t peer : problem.fabric.nodes[static_cast<size_t>(gpu.node)].gpus)
      if (problem.fabric.gpus[static_cast<size_t>(peer)].domain == gpu.domain)
        in_use[static_cast<size_t>(peer)] = true;
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
      if (in_use[g]) used[static_cast<size_t>(link)] = true;
    }
  }
  for (size_t link = 0; link < rates.size(); ++link) {
    if (owned[link] && !used[link]) rates[link] = 0;
  }
  return rates;
}

LowerBound lower_bound(const Problem& problem) {
  return lower_bound(problem.demand, problem.train, problem.gen, problem.fabric,
                     problem.gpu_of_rank, usable_rates(problem));
}

LowerBound cut_bound(const Problem& problem) {
  return cut_bound(problem.demand, problem.train, problem.gen, problem.fabric, problem.gpu_of_rank,
                   usable_rates(problem));
}

Plan search(const Problem& problem, const SearchOptions& options, const Progress& progress) {
  find_strategy(options.strategy);  // before the work
  if (progress) progress("bound", 0);
  return search(problem, options, lower_bound(problem), progress);
}

Plan search(const Problem& problem, const SearchOptions& options, const LowerBound& bound,
            const Progress& progress) {
  const auto report = [&](const std::string& phase, double part) {
    if (progress) progress(phase, part);
  };
  const Strategy& strategy = find_strategy(options.strategy);
  const std::string found = "bound " + print_time(bound.seconds);
  report(found, kRouted);
  SearchOptions watched = options;
  watched.attempted = [&](double best_s, double part) {
    report(found + ", best " + print_time(best_s), kRouted + (kTried - kRouted) * part);
  };
  Plan plan = plan_with_casts(problem, strategy, watched);
  plan.max_peers = options.max_peers;
  if (options.deadline_s > 0) mark_deadline(plan, options.deadline_s);
  require_peers(options, plan_totals(plan).max_peers);
  report(found + ", check", kTried);
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
  std::erase_if(plan.inputs, [](const auto& input) { return input.first == kBoundInput; });
  plan.inputs.emplace_back(kBoundInput, print_bound(bound, problem.fabric));
  report("done", 1);
  return plan;
}

}  // namespace refit
