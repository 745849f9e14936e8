// Run by mpirun on some processes of one host: they meet and exchange.

#include <cstdio>
#include <string>

#include "base/error.h"
#include "exec/mpi_bootstrap.h"

int main() {
  using namespace refit;
  try {
    const MpiMeeting meeting = meet_by_mpi(30);
    Bootstrap& bootstrap = *meeting.bootstrap;
    for (int round = 0; round < 3; ++round) {
      const auto blobs = bootstrap.all_gather(std::to_string(bootstrap.rank() * 10 + round));
      for (int32_t rank = 0; rank < bootstrap.world(); ++rank) {
        if (blobs.at(static_cast<size_t>(rank)) != std::to_string(rank * 10 + round)) return 3;
      }
    }
    // All on one host here.
    if (meeting.local_rank != bootstrap.rank()) return 4;
    bootstrap.barrier();
    std::printf("met %d\n", bootstrap.rank());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
