#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/bootstrap.h"

namespace refit {

struct MpiMeeting {
  std::unique_ptr<Bootstrap> bootstrap;
  int32_t local_rank = 0;  // among the processes of this host
};

/// The processes of MPI_COMM_WORLD, as ranks that `process_of` says, unless it is empty. MPI
/// carries where process 0 listens and a fresh job token, nothing else. Process 0 listens on the
/// address that REFIT_BIND_ADDR or REFIT_MASTER_ADDR names, else on that of its host name.
/// Initialises MPI where nobody has, and then finalises it with the bootstrap.
MpiMeeting meet_by_mpi(const std::vector<int32_t>& process_of, double timeout_s);

}  // namespace refit
