// The bound is a bound: on small random problems no strategy is faster than the flow program says,
// and no bound above it.

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "sim/search/search.h"
#include "tests/pipeline/random_layout.h"
#include "tests/sim/flow/flow_cases.h"
#include "tests/sim/flow/flow_program.h"

namespace refit {
namespace {

using testing::cases;
using testing::layout_of;
using testing::Random;

RankMap random_map(Random& random, const Dims& shape, const std::vector<int32_t>& ranks) {
  Mesh mesh{.axis = {}, .size = {}, .ranks = ranks};
  std::vector<Placement> placements;
  auto left = static_cast<int32_t>(ranks.size());
  do {
    auto size = static_cast<int32_t>(random.in(2, std::max(left, 2)));
    while (left % size != 0) --size;
    if (size == 1) size = left;
    mesh.axis.push_back("a" + std::to_string(mesh.size.size()));
    mesh.size.push_back(size);
    placements.push_back({static_cast<int32_t>(random.in(-1, shape.count - 1))});
    left /= size;
  } while (left > 1);
  return make_map(shape, mesh, placements, Split::kChunk, "test");
}

std::vector<int32_t> range(int32_t first, int64_t count) {
  std::vector<int32_t> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

/// Up to three tensors, one side after the other on two or three nodes of a small fabric, colocated
/// now and then.
Problem random_problem(uint64_t seed) {
  Random random(seed);
  std::mt19937 of_fabric(static_cast<uint32_t>(seed));
  Problem problem;
  problem.model.name = "random";
  const auto nodes = static_cast<int32_t>(random.in(2, 3)), gpus = nodes == 2 ? 3 : 2;
  const auto all = static_cast<int32_t>(nodes * gpus);
  const auto train_ranks = range(0, random.in(1, all - 1));
  const auto train_end = static_cast<int32_t>(train_ranks.size());
  const auto gen_first =
      random.one_of(4) ? static_cast<int32_t>(random.in(0, train_end)) : train_end;
  const auto gen_ranks = range(gen_first, random.in(1, all - gen_first));
  std::vector<RankMap> train, gen;
  for (int64_t t = 0, count = random.in(1, 3); t < count; ++t) {
    Tensor tensor;
    tensor.name = "t" + std::to_string(t);
    tensor.shape.count = 2;
    tensor.shape[0] = 96 * random.in(1, 40);
    tensor.shape[1] = 4096;
    train.push_back(random_map(random, tensor.shape, train_ranks));
    gen.push_back(random_map(random, tensor.shape, gen_ranks));
    problem.model.tensors.push_back(tensor);
  }
  problem.train = layout_of(std::move(train), train_ranks);
  problem.gen = layout_of(std::move(gen), gen_ranks);
  problem.demand = make_demand(problem.model, problem.train, problem.gen);
  problem.fabric = testing::random_fabric(of_fabric, nodes, gpus);
  problem.cost = parse_cost(load_cost_source("nominal"));
  problem.gpu_of_rank = range(0, all);
  return problem;
}

TEST(PriceBound, FlowProgramAndEveryStrategy) {
  int compared = 0, plans = 0, close = 0, by_prices = 0;
  for (uint64_t seed = 1; compared < cases(25, 500); ++seed) {
    const Problem problem = random_problem(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    LowerBound bound;
    const std::vector<double> rates = usable_rates(problem);
    const std::vector<Multicast> items = make_multicasts(problem.demand, problem.gpu_of_rank);
    const double optimum = testing::flow_program(problem.fabric, rates, items);
    try {
      bound = lower_bound(problem);
    } catch (const Error&) {  // no link crosses some cut
      EXPECT_EQ(optimum, std::numeric_limits<double>::infinity());
      continue;
    }
    if (optimum == std::numeric_limits<double>::infinity()) continue;
    ++compared;
    EXPECT_LE(bound.seconds, optimum * (1 + 1e-7));
    EXPECT_TRUE(bound.fluid_s == 0 || bound.fluid_s >= optimum * (1 - 1e-7));
    close += bound.seconds >= optimum * 0.99;
    by_prices += bound.from_prices;
    for (const auto& [name, summary] : list_strategies()) {
      SearchOptions options;
      options.strategy = name;
      options.attempts = 2;
      Plan plan;
      try {
        plan = search(problem, options, bound);
      } catch (const Error&) {  // that cannot serve these layouts, or this fabric
        continue;
      }
      ++plans;
      EXPECT_GE(plan.prediction.predicted_s, optimum * (1 - 1e-7)) << name;
    }
  }
  fmt::print("{} problems, {} plans: bound within 1 % of the program on {}, by prices on {}\n",
             compared, plans, close, by_prices);
  EXPECT_GE(close, compared * 95 / 100);
  EXPECT_GT(plans, 5 * compared);
}

}  // namespace
}  // namespace refit
