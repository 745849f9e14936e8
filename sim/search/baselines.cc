#include "sim/search/baselines.h"

#include <algorithm>

namespace refit {
namespace {

/// At the peers a group call moves whole tensors; a start-up per 64 MiB is 2 % at a NIC's rate.
constexpr int64_t kLargestMessage = int64_t{64} << 20;

}  // namespace

Plan plan_baseline(const Problem& problem, const SearchOptions& options, void (*make)(Baseline&)) {
  const Choice choice = parse_choice(options.strategy);
  std::vector<int32_t> bulk, misc;
  for (int32_t t = 0; t < std::ssize(problem.demand.tensor_overlay); ++t) {
    if (problem.demand.tensor_overlay[static_cast<size_t>(t)] < 0) continue;  // nobody needs it
    const bool ffn = problem.model.tensors[static_cast<size_t>(t)].ffn;
    (choice.misc && !ffn ? misc : bulk).push_back(t);
  }
  return fit_script(problem, options, kLargestMessage, [&](int64_t message) {
    Baseline baseline{problem, choice, message, bulk, options.seed};
    make(baseline);
    if (!misc.empty()) {
      int32_t lanes = 0;
      for (const Move& move : baseline.script.moves) lanes = std::max(lanes, move.turn.lane + 1);
      baseline.script.bulk_lanes = lanes;
      add_misc(baseline, misc, lanes);
    }
    return std::move(baseline.script);
  });
}

}  // namespace refit
