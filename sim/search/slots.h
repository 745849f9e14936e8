#pragma once

#include "sim/search/search.h"

namespace refit {

/// Gives the slots of a plan, all at offset 0 so far, their memory: what a step brings lies side by
/// side, and memory is reused where the plan as simulated allows that without delay, so that it
/// takes as long as with endless memory. The steps that fill a slot then wait for those that read
/// what lay there before. As these waits all lead forward in simulated time, there is no circle.
///
/// Each slot is filled by one step, and read after it. Slots are spread over more memory than they
/// need where `staging_bytes`, packing included, leave it.
void place_slots(Plan& plan, const Problem& problem, int64_t staging_bytes);

}  // namespace refit
