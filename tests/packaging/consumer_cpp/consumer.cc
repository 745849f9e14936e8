// Plans from C++: consumer MODEL PLAN. Prints the digest of the plan and the ratio to its bound.

#include <cstdio>

#include "base/error.h"
#include "plans/plan_io.h"
#include "sim/search/problem.h"
#include "sim/search/search.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const refit::Problem problem = refit::load_problem({.model = argv[1],
                                                        .train = "megatron:ep=2,pp=2",
                                                        .gen = "vllm:tp=4,dp=2",
                                                        .fabric = "dgx-h100"});
    const refit::Plan plan = refit::search(problem, {});
    const refit::SavedPlan saved = refit::save_plan(plan, argv[2]);
    std::printf("%s %.17g\n", saved.digest.c_str(), plan.prediction.predicted_s);
    return 0;
  } catch (const refit::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
