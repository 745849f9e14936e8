#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "exec/replay.h"
#include "exec/report.h"

namespace refit {

/// Replays the plan file as one of the processes that mpirun has started; all of them call it.
/// Returns the outcome on rank 0 (plan, report and hosts of it), nothing on the others.
///
/// Before the first byte rank 0 compares what all ranks say of themselves: version, digest, number
/// of ranks, options, and where they run. Ranks of one node (NVLink domain) of the plan have to
/// share a host (domain), and others may not, unless all run on one host: a rehearsal, said on
/// stderr.
///
/// Throws Error that names ranks; then a call into MPI may hang and the process should end at once,
/// without destructors. Where it hangs in MPI by itself, it is ended here, with the error on
/// stderr.
std::optional<Outcome> replay_on_mpi(const std::string& path,
                                     const std::vector<int32_t>& process_of,
                                     const ReplayOptions& options);

}  // namespace refit
