#pragma once

#include <cstdint>
#include <memory>

#include "exec/bootstrap.h"

namespace refit {

struct MpiMeeting {
  std::unique_ptr<Bootstrap> bootstrap;
  int32_t local_rank = 0;  // among the processes of this host
};

/// The processes of MPI_COMM_WORLD. MPI carries where rank 0 listens and a fresh job token; from then
/// on they talk over TCP, as MPI may hang for good once a rank is gone. Rank 0 listens on the address
/// that REFIT_BIND_ADDR or REFIT_MASTER_ADDR names, else on that of its host name. Initialises MPI
/// where nobody has, and then finalises it with the bootstrap.
MpiMeeting meet_by_mpi(double timeout_s);

}  // namespace refit
