#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plans/plan.h"
#include "sim/cost/bound.h"
#include "sim/cost/cost_model.h"
#include "sim/fabric/fabric.h"
#include "sim/layout/demand.h"
#include "sim/layout/layout.h"
#include "sim/layout/quantise.h"
#include "sim/model/model.h"

namespace refit {

/// All that a strategy may look at. Tensors of the model are those that move, companions of
/// quantised weights included, and have the dtype that they have on wires (sim/layout/quantise.h).
struct Problem {
  Model model;
  Layout train, gen;
  std::vector<Cast> casts;   // by tensor; empty: none
  int64_t weight_bytes = 0;  // of the trained model
  Demand demand;
  Fabric fabric;
  CostModel cost;
  std::vector<int32_t> gpu_of_rank;  // -1: a number that no side uses
  Inputs inputs;                     // texts of all of the above
};

struct SearchOptions {
  std::string strategy = "refit";
  uint64_t seed = 0;
  int64_t staging_bytes = int64_t{1} << 30;
  int32_t max_peers = 0;   // bound on network peers per rank; 0: none
  int32_t attempts = 200;  // schedules that `refit` simulates at most, to keep the fastest
  bool relays = true;      // `refit` may relay also where there are paths without
  double deadline_s = 0;   // of improving, for `refit`; 0: none, since it depends on the machine
  // Called when `refit` has simulated a schedule, with the time of the best so far and the part of
  // the attempts that is made.
  std::function<void(double best_s, double part)> attempted = {};
};

/// Reads "200it" (attempts) or "10s" (time) into the options.
void set_deadline(SearchOptions& options, const std::string& text, const std::string& place);

/// Achievable rates of the links that ranks can use: those of GPUs without a rank carry nothing,
/// since no process there could send, receive or relay. What bound, search and simulator agree on.
std::vector<double> usable_rates(const Problem& problem);

/// The bound of the problem on its usable links: of cuts and prices, and of cuts alone.
LowerBound lower_bound(const Problem& problem);
LowerBound cut_bound(const Problem& problem);

/// Called with what is being done (bound and best plan so far, where they are known) and how much
/// of it, 0..1.
using Progress = std::function<void(const std::string& phase, double part)>;

/// Plans the problem with the named strategy, checks the plan (a fault is a broken invariant of
/// ours and raises an Error of kind kWork), bounds and simulates it, and fills in the prediction.
Plan search(const Problem& problem, const SearchOptions& options, const Progress& progress = {});

/// The same with a bound that is known already.
Plan search(const Problem& problem, const SearchOptions& options, const LowerBound& bound,
            const Progress& progress = {});

/// Names of all strategies, with one line each.
std::vector<std::pair<std::string, std::string>> list_strategies();

}  // namespace refit
