#pragma once

#include "exec/replay.h"
#include "plans/plan.h"

namespace refit {

/// Replays the plan on this host, all ranks as threads. Throws Error: kInput when buffers and
/// staging do not fit into the memory that is available, kWork when a rank fails or a byte is
/// wrong.
ReplayReport replay_on_host(const Plan& plan, const ReplayOptions& options);

}  // namespace refit
