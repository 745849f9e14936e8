#pragma once

#include <cstdint>
#include <functional>

#include "plans/plan.h"
#include "sim/search/search.h"

namespace refit {

/// Builds a plan with ever smaller messages, from `largest` bytes on, until slots and packing fit
/// the staging bound, and says in it how it was asked for. An Error names the bound that it needs.
Plan fit_staging(const SearchOptions& options, int64_t largest,
                 const std::function<Plan(int64_t message)>& build);

}  // namespace refit
