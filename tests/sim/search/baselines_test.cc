// Baselines against what the peers' rules give by hand, on one tensor and a few ranks.

#include "sim/search/baselines.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "sim/simulator/host_work.h"
#include "sim/simulator/simulator.h"
#include "tests/refused.h"
#include "tests/sim/search/small_fabric.h"

namespace refit {
namespace {

/// One side: replicas x shards of consecutive ranks, the shards along `dim`.
struct Grid {
  int32_t first = 0, replicas = 1, shards = 1, dim = 0;
};

Layout make_layout(const Model& model, Grid grid) {
  Layout layout;
  layout.spec = "test";
  Mesh mesh{.axis = {"replica", "shard"}, .size = {grid.replicas, grid.shards}, .ranks = {}};
  for (int32_t r = 0; r < grid.replicas * grid.shards; ++r) mesh.ranks.push_back(grid.first + r);
  layout.ranks = mesh.ranks;
  const std::vector<Placement> placements = {{}, {grid.dim}};
  for (const Tensor& tensor : model.tensors) {
    layout.tensor_map.push_back(static_cast<int32_t>(layout.maps.size()));
    layout.maps.push_back(make_map(tensor.shape, mesh, placements, Split::kEven, "test"));
  }
  return layout;
}

/// Tensors of bf16; nodes of four GPUs, gen ranks on nodes of their own.
Problem make_problem(const std::vector<Dims>& shapes, Grid train, Grid gen) {
  Problem problem;
  for (const Dims& shape : shapes) {
    Tensor tensor;
    tensor.name = "t" + std::to_string(problem.model.tensors.size());
    tensor.shape = shape;
    tensor.ffn = problem.model.tensors.empty();  // the first one
    problem.model.tensors.push_back(tensor);
  }
  gen.first = train.replicas * train.shards;
  problem.train = make_layout(problem.model, train);
  problem.gen = make_layout(problem.model, gen);
  problem.demand = make_demand(problem.model, problem.train, problem.gen);
  testing::place_on_small_fabric(problem);
  return problem;
}

/// Who sends over the network, each rank once.
std::set<int32_t> network_senders(const Plan& plan) {
  std::set<int32_t> senders;
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    for (const Step& step : program.steps) {
      for (int32_t m = step.first_send; m < step.first_recv; ++m) {
        const int32_t peer = program.messages[static_cast<size_t>(m)].peer;
        if (!same_domain(plan, rank, peer)) senders.insert(rank);
      }
    }
  }
  return senders;
}

struct Bytes {
  const char* strategy;
  int64_t between, inside;
};

TEST(Baselines, BytesOfTwoShardsToTwoReplicas) {
  // [16, 16] of bf16 is 512 bytes. Ranks 0, 1 hold halves of the rows; ranks 2..5, in one domain,
  // are two replicas of the same halves.
  const Problem problem = make_problem({{16, 16}}, {.shards = 2}, {.replicas = 2, .shards = 2});
  const Bytes expected[] = {
      // Everybody gets its half from outside: 4 x 256.
      {"megatron", 1024, 0},
      {"megatron-colored", 1024, 0},
      {"modulo", 1024, 0},
      {"pull-first", 1024, 0},
      {"pull-balanced", 1024, 0},
      {"m2n-direct", 1024, 0},
      // Once into the domain, and on to the other replica.
      {"m2n-chain", 512, 512},
      {"alpa", 512, 512},
      // A quarter to each, then a quarter from the partner: 4 x 128 twice.
      {"striped", 512, 512},
      // Rank 1's half to rank 0, all to one gen rank, from there to three: 256 + 3 x 512.
      {"broadcast", 512, 1792},
      {"relay-broadcast", 512, 1792},
      {"staged-broadcast", 512, 1792},
      {"chain-broadcast", 512, 1792},
      // Both sources gather the other's half; 4 x 256 written.
      {"miles", 1024, 512},
  };
  size_t baselines = 0;
  for (const Strategy& strategy : all_strategies()) baselines += strategy.baseline;
  EXPECT_EQ(std::size(expected), baselines);
  for (const Bytes& e : expected) {
    SCOPED_TRACE(e.strategy);
    const PlanTotals totals = plan_totals(search(problem, {.strategy = e.strategy}));
    EXPECT_EQ(totals.bytes_inter_domain, e.between);
    EXPECT_EQ(totals.bytes_intra_domain, e.inside);
  }
}

TEST(Baselines, WhoSendsFollowsThePeersRule) {
  // Four replicas on ranks 0..3; gen ranks 4..7 need a quarter each.
  const Problem problem = make_problem({{16, 16}}, {.replicas = 4}, {.shards = 4});
  const std::vector<std::pair<const char*, std::set<int32_t>>> expected = {
      {"megatron", {0, 1, 2, 3}},       // replica: receiver mod 4
      {"pull-balanced", {0, 1, 2, 3}},  // least loaded
      {"pull-first", {0}},
      {"modulo", {0}},   // replica 0 of the gen side
      {"striped", {0}},  // no replicas to stripe over: the first holder
      {"m2n-direct", {0}},
      {"miles", {0, 1, 2, 3}},  // one to one
  };
  for (const auto& [strategy, senders] : expected) {
    EXPECT_EQ(network_senders(search(problem, {.strategy = strategy})), senders) << strategy;
  }
}

TEST(Baselines, LoadBalanceOfM2n) {
  // Four source replicas; two target replicas of four shards, each a domain of its own.
  const Problem problem = make_problem({{16, 16}}, {.replicas = 4}, {.replicas = 2, .shards = 4});
  const auto senders = [&](const char* strategy) {
    return network_senders(search(problem, {.strategy = strategy}));
  };
  EXPECT_EQ(senders("m2n-direct:lb=uniform"), (std::set<int32_t>{0, 2}));  // first of two each
  EXPECT_EQ(senders("m2n-direct:lb=node"), (std::set<int32_t>{0, 1}));     // one a domain
  // One source replica for both domains: a chain through the first one's ranks.
  const Problem chained = make_problem({{16, 16}}, {}, {.replicas = 2, .shards = 4});
  EXPECT_EQ(network_senders(search(chained, {.strategy = "m2n-chain"})),
            (std::set<int32_t>{0, 1, 2, 3, 4}));
}

TEST(Baselines, PullFirstOverFetches) {
  // Half the columns of 128 rows are 128 runs, more than 64: both readers pull the 4096 bytes.
  const Problem strided = make_problem({{128, 16}}, {}, {.shards = 2, .dim = 1});
  EXPECT_EQ(plan_totals(search(strided, {.strategy = "pull-first"})).bytes_total, 2 * 4096);
  const Problem few = make_problem({{64, 16}}, {}, {.shards = 2, .dim = 1});
  EXPECT_EQ(plan_totals(search(few, {.strategy = "pull-first"})).bytes_total, 2048);
}

TEST(Baselines, MiscGoesWholeToEverybodyAfterTheBulk) {
  const Problem problem = make_problem({{16, 16}, {8, 16}}, {}, {.replicas = 2, .shards = 2});
  const Plan plan = search(problem, {.strategy = "modulo+misc"});
  // Bulk 4 x 256; misc, 256 bytes, once into the domain and to three others.
  const PlanTotals totals = plan_totals(plan);
  EXPECT_EQ(totals.bytes_inter_domain, 1024 + 256);
  EXPECT_EQ(totals.bytes_intra_domain, 3 * 256);
  for (const Program& program : plan.programs) {
    bool waits = true;
    for (const Step& step : program.steps) {
      if (step.channel > 0) {
        waits = step.first_wait < step.last_wait;
        break;
      }
    }
    EXPECT_TRUE(waits);
  }
}

TEST(Baselines, ColouredIterationsKeepARankToOneMessage) {
  const Problem problem =
      make_problem({{16, 16}}, {.shards = 4}, {.replicas = 2, .shards = 2, .dim = 1});
  const Plan plan = search(problem, {.strategy = "megatron-colored"});
  for (const Program& program : plan.programs) {
    for (const Step& step : program.steps) EXPECT_EQ(step.last_message - step.first_send, 1);
  }
}

TEST(Baselines, HostWorkIsPaidPerParameter) {
  Problem problem = make_problem({{16, 16}}, {.shards = 2}, {.replicas = 2, .shards = 2});
  const Plan plan = search(problem, {.strategy = "striped"});
  const double without = plan.prediction.predicted_s;
  EXPECT_EQ(read_host_input(plan), (std::vector<HostWork>{{0, 0, 1, 0}}));
  problem.cost.host = {.parameter = 3e-3, .call = 5e-3};
  EXPECT_NEAR(simulate(plan, problem.fabric, problem.cost).refit_s, without + 3e-3, 1e-12);
  // The experts of a grouped tensor are parameters of their own.
  problem.model.tensors[0].role = Role::kExpertColumn;
  EXPECT_EQ(read_host_input(search(problem, {.strategy = "striped"}))[0].parameters, 16);
  EXPECT_EQ(read_host_input(search(problem, {.strategy = "m2n-chain"})),
            (std::vector<HostWork>{{0, 0, 0, 1}}));
}

TEST(Baselines, RefusesWhatItsPeerCannotServe) {
  const Problem uneven = make_problem({{16, 16}}, {}, {.shards = 2});
  Problem problem = uneven;
  problem.gen.maps[0].shards[0].second[0].box.hi[0] = 9;  // 9 and 7 rows
  problem.gen.maps[0].shards[1].second[0].box.lo[0] = 9;
  problem.demand = make_demand(problem.model, problem.train, problem.gen);
  EXPECT_EQ(error_of([&] { search(problem, {.strategy = "m2n-chain"}); }, ErrorKind::kWork),
            "m2n-chain: t0: found uneven shards on the gen side, expected even ones");
  EXPECT_NO_THROW(search(problem, {.strategy = "megatron"}));
}

TEST(Choice, Reads) {
  EXPECT_EQ(parse_choice("m2n-chain").options.at("lb"), "node");
  EXPECT_EQ(parse_choice("m2n-chain:lb=uniform").options.at("lb"), "uniform");
  EXPECT_TRUE(parse_choice("alpa+misc:order=dfs").misc);
  EXPECT_EQ(parse_choice("alpa+misc:order=dfs").options.at("order"), "dfs");
  EXPECT_FALSE(parse_choice("refit").misc);
}

TEST(Choice, RefusesWithWhatIsKnown) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "one of refit"},
      {"strip", "one of refit"},
      {"striped+mis", "+misc"},
      {"striped+misc+misc", "+misc"},
      {"refit+misc", "for baselines"},
      {"striped:lb=node", "no options"},
      {"striped:", "no options"},
      {"m2n-chain:lb=both", "lb=node|uniform"},
      {"m2n-chain:lb", "lb=node|uniform"},
      {"m2n-chain:", "lb=node|uniform"},
      {"m2n-chain:lb=node,lb=node", "once"},
      {"m2n-chain:order=dfs", "lb=node|uniform"},
  };
  for (const auto& [text, hint] : wrong) {
    SCOPED_TRACE(text);
    expect_refused([&, &choice = text] { parse_choice(choice); }, {hint});
  }
}

TEST(Groups, CountsRunsContiguousOnBothSides) {
  const Box all = whole({4, 6, 8});
  const Box rows{{1, 0, 0}, {3, 6, 8}};
  EXPECT_EQ(count_runs(rows, all, rows), 1);
  const Box columns{{0, 0, 0}, {4, 6, 2}};
  EXPECT_EQ(count_runs(columns, all, columns), 24);
  const Box middle{{0, 2, 0}, {4, 4, 8}};
  EXPECT_EQ(count_runs(middle, all, middle), 4);
}

TEST(Groups, TreeEntersADomainOnce) {
  const Problem problem = make_problem({{16, 16}}, {}, {.replicas = 8});
  // Rank 0; members 1..4 and 5..8 in two domains. Turn 1: their second GPU is the entry.
  const std::vector<Leg> legs = make_tree(problem, 0, {1, 2, 3, 4, 5, 6, 7, 8}, 1);
  int32_t network = 0;
  std::set<int32_t> reached = {0};
  for (const Leg& leg : legs) {
    EXPECT_TRUE(reached.contains(leg.from));
    EXPECT_TRUE(reached.insert(leg.to).second);
    if (domain_of(problem, leg.from) != domain_of(problem, leg.to)) {
      ++network;
      EXPECT_TRUE(leg.to == 2 || leg.to == 6);
    }
  }
  EXPECT_EQ(network, 2);
  EXPECT_EQ(reached.size(), 9);
}

}  // namespace
}  // namespace refit
