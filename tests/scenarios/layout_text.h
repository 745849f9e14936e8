#pragma once

#include <string>

#include "sim/model/model.h"
#include "tests/scenarios/scenario.h"

namespace refit::scenarios {

// Scenarios as a user would give them to refit: a model and two layout files.

/// The scenario's tensors; `dtype` replaces theirs where not empty.
Model make_model(const Scenario& scenario, const std::string& dtype = "");

/// The layout file of one side, `train` or gen. With `declare` the local shapes that the scenario
/// declares stand in it, those of one rank only where `only_rank` is not -1; with `dtypes` the
/// side's own dtypes and casts.
std::string layout_text(const Scenario& scenario, bool train, bool declare = true,
                        int32_t only_rank = -1, bool dtypes = true);

/// Model and layout files of a scenario about names (`verify: names`): the model is what the gen side
/// wants, the train file has one entry for every name that a rank offers.
Model names_model(const Scenario& scenario);
std::string names_text(const Scenario& scenario, bool train);

/// The gen layout of a scenario about engines (`verify: ranks`).
std::string engines_text(const Scenario& scenario);

}  // namespace refit::scenarios
