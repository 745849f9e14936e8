#include "tests/scenarios/planning.h"

#include <algorithm>

#include "base/error.h"
#include "tests/scenarios/layout_text.h"
#include "tests/sim/search/small_fabric.h"

namespace refit::scenarios {
namespace {

/// Ranks on the hosts that the scenario names: all of one size, as are its NVLink domains.
void place_on_hosts(const Scenario& scenario, Problem& problem) {
  const size_t gpus = scenario.hosts.begin()->second.size();
  const size_t domain = scenario.domains.empty() ? gpus : scenario.domains.front().size();
  problem.fabric = make_fabric(testing::small_fabric(gpus, domain / gpus),
                               static_cast<int32_t>(scenario.hosts.size()));
  problem.cost = parse_cost(load_cost_source("nominal"));
  int32_t host = 0;
  for (const auto& [name, ranks] : scenario.hosts) {
    if (ranks.size() != gpus) fail("scenario " + scenario.id, "hosts of other sizes", "equal ones");
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto rank = static_cast<size_t>(ranks[i]);
      if (problem.gpu_of_rank.size() <= rank) problem.gpu_of_rank.resize(rank + 1, -1);
      problem.gpu_of_rank[rank] = host * static_cast<int32_t>(gpus) + static_cast<int32_t>(i);
    }
    ++host;
  }
}

}  // namespace

Problem make_problem(const Scenario& scenario, const std::string& dtype) {
  Problem problem;
  problem.model = make_model(scenario, dtype);
  const auto load = [&](bool train) {
    return load_layout(layout_text(scenario, train, true, -1, dtype.empty()), problem.model,
                       train ? Side::kTrain : Side::kGen, 0);
  };
  problem.train = load(true);
  problem.gen = load(false);
  problem.casts = apply_casts(problem.model, problem.train, problem.gen);
  problem.demand = make_demand(problem.model, problem.train, problem.gen);
  if (scenario.hosts.empty()) {
    testing::place_on_small_fabric(problem);
  } else {
    place_on_hosts(scenario, problem);
  }
  const auto world = static_cast<size_t>(scenario.exec_number("world", 0));
  problem.gpu_of_rank.resize(std::max(problem.gpu_of_rank.size(), world), -1);
  return problem;
}

Plan plan_scenario(const Scenario& scenario, const Problem& problem, const std::string& strategy,
                   double scale) {
  SearchOptions options;
  options.strategy = strategy;
  if (scenario.has_exec("staging_limit_bytes")) {
    options.staging_bytes = static_cast<int64_t>(
        scale * static_cast<double>(scenario.exec_number("staging_limit_bytes", 0)));
  }
  return search(problem, options);
}

Traffic count_traffic(const Plan& plan) {
  Traffic traffic;
  std::map<std::pair<int32_t, int32_t>, int64_t> rounds;  // by (channel, step)
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    const auto piece = [&](int32_t p) -> const Piece& {
      return program.pieces[static_cast<size_t>(p)];
    };
    std::map<std::pair<int32_t, int32_t>, int32_t> bringer;  // (tensor, box) -> peer
    const auto visit_received = [&](auto visit) {
      for (const Step& step : program.steps) {
        for (int32_t m = step.first_recv; m < step.last_message; ++m) {
          const Message& message = program.messages[static_cast<size_t>(m)];
          const Message* own = message.peer == rank ? find_send(program, step, rank) : nullptr;
          for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
            const bool again =
                own != nullptr &&
                piece(own->first_piece + p - message.first_piece).place == Place::kGen;
            visit(message.peer, piece(p), again);
          }
        }
      }
    };
    for (const Step& step : program.steps) {
      int64_t& most = rounds[{step.channel, step.id}];
      most = std::max<int64_t>(
          {most, step.first_recv - step.first_send, step.last_message - step.first_recv});
      traffic.most_sources =
          std::max<int64_t>(traffic.most_sources, step.last_message - step.first_recv);
    }
    visit_received([&](int32_t peer, const Piece& p, bool again) {
      if (!again) bringer[{p.tensor, p.box}] = peer;
    });
    visit_received([&](int32_t peer, const Piece& p, bool again) {
      const std::pair<int32_t, int32_t> pair{again ? bringer.at({p.tensor, p.box}) : peer, rank};
      const int64_t bytes = piece_bytes(program, p);
      traffic.pairs[pair] += bytes;
      ++traffic.descriptors[pair];
      if (p.place == Place::kGen) traffic.received[rank] += bytes;
      if (plan.ranks[static_cast<size_t>(rank)].node !=
          plan.ranks[static_cast<size_t>(peer)].node) {
        traffic.between_hosts += bytes;
      }
    });
  }
  for (const auto& [step, peers] : rounds) traffic.rounds += peers;
  return traffic;
}

}  // namespace refit::scenarios
