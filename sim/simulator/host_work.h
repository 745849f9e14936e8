#pragma once

#include <vector>

#include "plans/plan.h"
#include "sim/cost/cost_model.h"

namespace refit {

struct StepGraph;

/// Work of a framework's host before a step, on every rank that takes part in it: handling
/// checkpoint parameters (views, hooks, loaders) and making library calls. What it costs is the
/// cost model's business (HostCost). Only plans of baselines have any; the executor does not do it.
struct HostWork {
  int32_t channel = -1, step = -1;
  double parameters = 0, calls = 0;
  bool operator==(const HostWork&) const = default;
};

/// Keeps the work with the plan, as its input "host_work"; nothing when there is none.
void add_host_input(Plan& plan, std::vector<HostWork> work);

/// What the plan keeps, by (channel, step); empty when it keeps none.
std::vector<HostWork> read_host_input(const Plan& plan);

/// Adds the work to the start-ups of the steps: it occupies the lane, and packing overlaps with it.
void add_host_work(const Plan& plan, const CostModel& cost, StepGraph& graph);

}  // namespace refit
