#pragma once

#include <string>
#include <vector>

#include "sim/search/search.h"

namespace refit {

/// What a user names on the command line.
struct InputSpec {
  std::string model, train, gen, fabric;
  std::string cost;                       // "": the fabric's default
  std::string dtype;                      // "": the model's own
  int32_t nodes = 0;                      // 0: as many as the ranks need
  std::string place = {};                 // place file; "": the default placement
  std::vector<std::string> exclude = {};  // nodes, GPUs and NICs to plan around
  bool mtp = false;
  bool unknown_replicate = false;
};

/// Model, layouts and demand only: what can be said before any fabric.
void load_demand(const InputSpec& spec, Problem& problem,
                 std::vector<std::string>* notes = nullptr);

/// Loads and derives everything. Errors name the input they come from. `notes`, when given,
/// receives the choices made for the user.
Problem load_problem(const InputSpec& spec, std::vector<std::string>* notes = nullptr);

/// The problem that a plan was made for, from the inputs that it keeps.
Problem reload_problem(const Plan& plan);

/// The name of the model that a plan was made for.
std::string model_name(const Plan& plan);

/// What binds, by the bound that a plan keeps; nothing when it keeps none.
std::vector<PriceGroup> saved_binding(const Plan& plan);

/// Fabric and cost model as the plan keeps them; `cost` (a name or path) and `fabric` replace the
/// plan's own where not empty.
struct PlanWorld {
  Fabric fabric;
  CostModel cost;
};
PlanWorld load_world(const Plan& plan, const std::string& fabric = "",
                     const std::string& cost = "");

}  // namespace refit
