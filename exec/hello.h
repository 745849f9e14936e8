#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/replay.h"
#include "plans/plan_io.h"

namespace refit {

// What the processes of a job compare before the first byte.

/// What this rank says of itself: version, digest, options and where it runs, or what has kept it
/// from loading its part of the plan.
std::string print_hello(const LoadedPlan& loaded, const ReplayOptions& options,
                        const std::optional<Error>& refused);

struct Agreement {
  int32_t hosts = 0;
  bool rehearsal = false;  // all ranks of several nodes on one host
};

/// Throws Error that names the rank which is refused, differs from rank 0 or runs where the plan
/// does not have it. `hellos` by rank; the plan is that of the rank that compares.
Agreement compare_hellos(const std::vector<std::string>& hellos, const Plan& plan);

/// Says on stderr that times of a rehearsal are none of the fabric.
void report_rehearsal();

}  // namespace refit
