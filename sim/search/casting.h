#pragma once

#include "sim/search/search.h"
#include "sim/search/strategies.h"

namespace refit {

/// Plans a problem with casts with a strategy that knows none: it sees tensors in their wire dtype,
/// held by the ranks that can supply them.
///
/// Weights that gen ranks have to assemble (Cast::assembled) go in waves. They are cut into units
/// of whole blocks, and each unit gets a caster, a gen rank that needs some of it; of those the one
/// with the least to do. A wave is as many units as fit into half of the staging memory of their
/// casters. It has two phases, planned one after the other: the units travel to their casters'
/// slots in the train dtype; then every gen rank gets its data and scales from there, the caster
/// its own by a local copy. All that needs no assembly goes with the first phase. On each rank a
/// phase begins when the one before it has ended there.
Plan plan_with_casts(const Problem& problem, const Strategy& strategy,
                     const SearchOptions& options);

/// One plan behind the other, as above. `more` has the same ranks and tensors; its programs are
/// appended.
void append_programs(Plan& plan, const Plan& more);

}  // namespace refit
