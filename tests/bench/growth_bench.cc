// How the search grows: refit_bench_growth [--full]. Qwen3-30B-A3B from half of the ranks to the
// other half: train PP4 EP8 with as much data parallelism as fits, gen TP8 in replicas, dgx-h100.
// Seconds are of CPU, of search() as a whole: bound, routing, schedule, check, simulation. What
// they are to d log d of the d deliveries (boxes and needers) stands beside them, the first row
// being 1; a row above 1.5 is marked and fails the run. --full goes on from 512 to 4,096 ranks.

#include <fmt/core.h>

#include <cmath>
#include <cstring>

#include "sim/search/atoms.h"
#include "sim/search/problem.h"
#include "sim/search/search.h"
#include "tests/bench/process.h"

namespace refit {
namespace {

struct Growth {
  int64_t deliveries = 0, classes = 0;
  double bound = 0, predicted = 0, load_s = 0;
};

Growth plan_with(int32_t ranks) {
  const Problem problem =
      load_problem({.model = "qwen3-30b-a3b",
                    .train = fmt::format("megatron:pp=4,ep=8,world={}", ranks / 2),
                    .gen = fmt::format("vllm:tp=8,dp={}", ranks / 16),
                    .fabric = "dgx-h100",
                    .cost = "",
                    .dtype = ""});
  Growth row;
  for_each_atom(problem, [&](int32_t, const Atom&, const auto& remote, const auto&) {
    row.deliveries += std::ssize(remote);
  });
  row.classes = std::ssize(problem.demand.classes);
  row.load_s = cpu_seconds();
  const Plan plan = search(problem, {.attempts = 1});
  row.bound = plan.prediction.lower_bound_s;
  row.predicted = plan.prediction.predicted_s;
  return row;
}

/// In a process of its own; `first` is the first row's CPU time to d log d.
bool run_ranks(int32_t ranks, double& first) {
  const auto measured = measure(fmt::format("{} ranks", ranks), [&] { return plan_with(ranks); });
  if (!measured) {
    fmt::print("{:>6}  failed\n", ranks);
    return false;
  }
  const Growth& row = measured->result;
  const double took = measured->cpu_s - row.load_s;
  const auto d = static_cast<double>(row.deliveries);
  const double per = took / (d * std::log2(d));
  if (first == 0) first = per;
  const bool met = per <= 1.5 * first;
  fmt::print("{:>6} {:>11} {:>8} {:>9.2f} {:>9.2f} {:>8.2f} {:>8.4f}{}\n", ranks, row.deliveries,
             row.classes, took, per / first, measured->memory_gib, row.predicted / row.bound,
             met ? "" : "  ABOVE");
  return met;
}

int run(bool full) {
  fmt::print("{:>6} {:>11} {:>8} {:>9} {:>9} {:>8} {:>8}\n", "ranks", "deliveries", "classes",
             "cpu s", "/ d log d", "GiB", "ratio");
  bool met = true;
  double first = 0;
  for (int32_t ranks = 64; ranks <= (full ? 4096 : 512); ranks *= 2) met &= run_ranks(ranks, first);
  return met ? 0 : 1;
}

}  // namespace
}  // namespace refit

int main(int argc, char** argv) {
  return refit::run(argc > 1 && std::strcmp(argv[1], "--full") == 0);
}
