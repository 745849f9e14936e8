// Properties of the default strategy on small problems.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "base/error.h"
#include "sim/search/problem.h"
#include "sim/search/search.h"
#include "sim/search/strategies.h"

namespace refit {
namespace {

int scale() {
  const char* text = std::getenv("REFIT_FUZZ_SCALE");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

template <typename List>
const char* pick(std::mt19937_64& random, const List& list) {
  return list[random() % std::size(list)];
}

InputSpec random_spec(std::mt19937_64& random) {
  const char* models[] = {"qwen3-0.6b", "qwen3-1.7b", "qwen3-4b"};
  const char* train[] = {"megatron:tp=2,pp=2",      "megatron:dp=4",     "megatron:tp=4,dp=2",
                         "megatron:pp=4,tp=2,dp=2", "megatron:tp=8",     "fsdp:world=8",
                         "megatron:pp=8",           "megatron:dp=8,tp=2"};
  const char* gen[] = {"vllm:tp=4",      "vllm:tp=2,dp=4", "vllm:tp=1,dp=4",
                       "vllm:tp=8,dp=2", "vllm:tp=8",      "vllm:tp=4,dp=4"};
  const char* fabrics[] = {"dgx-h100", "gb200-nvl72", "emulated-4x4"};
  return {.model = pick(random, models),
          .train = pick(random, train),
          .gen = pick(random, gen),
          .fabric = pick(random, fabrics),
          .cost = "",
          .dtype = ""};
}

// The bound holds, and no other strategy is faster.
TEST(PlanRefit, BetweenTheBoundAndEveryOtherStrategy) {
  std::mt19937_64 random(5);
  const int cases = std::min(300, 1 + 16 * (scale() - 1));
  for (int i = 0; i < cases; ++i) {
    const InputSpec spec = random_spec(random);
    SCOPED_TRACE(spec.model + " " + spec.train + " " + spec.gen + " " + spec.fabric);
    Problem problem;
    try {
      problem = load_problem(spec);
    } catch (const std::exception&) {
      continue;  // layouts that do not divide this model, or do not fit on this fabric
    }
    const Prediction ours = search(problem, {}).prediction;
    EXPECT_GE(ours.predicted_s, ours.lower_bound_s * (1 - 1e-9));
    for (const auto& [name, summary] : list_strategies()) {
      SearchOptions options;
      options.strategy = name;
      double theirs = 0;
      try {
        theirs = search(problem, options).prediction.predicted_s;
      } catch (const Error&) {
        EXPECT_TRUE(find_strategy(name).baseline) << name;
        continue;  // a peer that cannot serve these layouts
      }
      EXPECT_LE(ours.predicted_s, theirs * (1 + 1e-9)) << name;
    }
  }
}

TEST(PlanRefit, SameInputsSamePlan) {
  const Problem problem = load_problem({.model = "qwen3-0.6b",
                                        .train = "megatron:tp=2,pp=2",
                                        .gen = "vllm:tp=4,dp=2",
                                        .fabric = "dgx-h100",
                                        .cost = "",
                                        .dtype = ""});
  EXPECT_EQ(search(problem, {.attempts = 6}), search(problem, {.attempts = 6}));
}

// More attempts never give a slower plan: the first one is among them.
TEST(PlanRefit, MoreAttemptsAreNotSlower) {
  const Problem problem = load_problem({.model = "qwen3-0.6b",
                                        .train = "megatron:tp=8",
                                        .gen = "vllm:tp=8,dp=4",
                                        .fabric = "dgx-h100",
                                        .cost = "",
                                        .dtype = ""});
  double last = search(problem, {.attempts = 1}).prediction.predicted_s;
  for (const int32_t attempts : {2, 4, 8}) {
    const double next = search(problem, {.attempts = attempts}).prediction.predicted_s;
    EXPECT_LE(next, last);
    last = next;
  }
}

}  // namespace
}  // namespace refit
