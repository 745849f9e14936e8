#include "exec/mpi_bootstrap.h"

#include <mpi.h>

#include <cstdlib>
#include <string>

#include "base/error.h"
#include "exec/machine.h"
#include "exec/mpi_invitation.h"

namespace refit {

namespace {

class MpiBootstrap final : public Bootstrap {
 public:
  MpiBootstrap(std::unique_ptr<Bootstrap> inner, bool initialised)
      : inner_(std::move(inner)), initialised_(initialised) {}
  ~MpiBootstrap() override {
    const bool failed = !inner_->failure().empty();
    inner_.reset();
    if (initialised_ && !failed) MPI_Finalize();
  }
  int32_t rank() const override { return inner_->rank(); }
  int32_t world() const override { return inner_->world(); }
  std::vector<std::string> all_gather(std::string_view mine) override {
    return inner_->all_gather(mine);
  }
  void publish_failure(const std::string& reason) override { inner_->publish_failure(reason); }
  std::string failure() override { return inner_->failure(); }

 private:
  std::unique_ptr<Bootstrap> inner_;
  const bool initialised_;  // by us
};

std::string own_address() {
  for (const char* name : {"REFIT_MASTER_ADDR", "REFIT_BIND_ADDR"}) {
    if (const char* address = std::getenv(name)) return address;
  }
  return host_name();
}

}  // namespace

MpiMeeting meet_by_mpi(const std::vector<int32_t>& process_of, double timeout_s) {
  int initialised = 0, level = 0;
  MPI_Initialized(&initialised);
  if (initialised == 0) MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
  BootstrapOptions options;
  MPI_Comm_rank(MPI_COMM_WORLD, &options.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &options.world);
  options.timeout_s = timeout_s;
  const bool is_root = options.rank == 0;
  if (!process_of.empty()) map_ranks(options, process_of);
  MpiMeeting meeting;
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, options.rank, MPI_INFO_NULL, &host);
  MPI_Comm_rank(host, &meeting.local_rank);
  MPI_Comm_free(&host);

  if (is_root) {
    options.address = own_address();
    if (const char* bind = std::getenv("REFIT_BIND_ADDR")) options.bind_address = bind;
    Invitation invitation = make_invitation({options.address});
    options.token = invitation.token.data();
    options.announce = [&](int32_t port) {
      invitation.port = port;
      // A world of one has nobody to meet, and no port.
      if (options.world > 1) share_invitation(invitation, 0, MPI_COMM_WORLD);
    };
    try {
      meeting.bootstrap = make_tcp_bootstrap(options);
    } catch (const std::exception&) {
      if (invitation.port == 0) {
        MPI_Bcast(&invitation, sizeof invitation, MPI_BYTE, 0, MPI_COMM_WORLD);
      }
      throw;
    }
  } else {
    Invitation invitation;
    share_invitation(invitation, 0, MPI_COMM_WORLD);
    options.address = list_hosts(invitation).front();
    options.token = invitation.token.data();
    options.port = invitation.port;
    meeting.bootstrap = make_tcp_bootstrap(options);
  }
  meeting.bootstrap =
      std::make_unique<MpiBootstrap>(std::move(meeting.bootstrap), initialised == 0);
  return meeting;
}

}  // namespace refit
