#include "exec/mpi_invitation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "base/error.h"
#include "exec/secret.h"

namespace refit {

Invitation make_invitation(const std::vector<std::string>& hosts) {
  Invitation invitation;
  const std::string names = fmt::format("{}", fmt::join(hosts, " "));
  if (names.size() >= invitation.hosts.size()) {
    throw Error("meeting: the addresses of this host are too long", ErrorKind::kWork);
  }
  names.copy(invitation.hosts.data(), names.size());
  const std::string token = print_hex(random_bytes(16));
  token.copy(invitation.token.data(), invitation.token.size() - 1);
  return invitation;
}

void share_invitation(Invitation& invitation, int root, MPI_Comm comm) {
  if (MPI_Bcast(&invitation, sizeof invitation, MPI_BYTE, root, comm) != MPI_SUCCESS) {
    throw Error("meeting: MPI_Bcast of the root's address failed", ErrorKind::kWork);
  }
  if (invitation.port == 0) throw Error("meeting: the root cannot listen", ErrorKind::kWork);
}

std::vector<std::string> list_hosts(const Invitation& invitation) {
  std::istringstream words(invitation.hosts.data());
  std::vector<std::string> hosts;
  for (std::string host; words >> host;) hosts.push_back(host);
  return hosts;
}

}  // namespace refit
