#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace refit {

/// What MPI carries from the root to the other processes: where it listens, and a job token. From
/// then on they talk over TCP (exec/meeting.h), as MPI may hang for good once a rank is gone.
struct Invitation {
  std::array<char, 4096> hosts{};  // apart by spaces
  std::array<char, 33> token{};
  int32_t port = 0;  // 0: the root cannot listen
};

/// With a fresh token.
Invitation make_invitation(const std::vector<std::string>& hosts);

/// From process `root` to all of the communicator. Throws Error.
void share_invitation(Invitation& invitation, int root, MPI_Comm comm);

std::vector<std::string> list_hosts(const Invitation& invitation);

}  // namespace refit
