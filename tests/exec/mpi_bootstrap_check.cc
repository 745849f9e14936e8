// Run by mpirun on some processes of one host: they meet and exchange. Arguments: the process of
// rank 0, of rank 1, ...

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/mpi_bootstrap.h"

int main(int argc, char** argv) {
  using namespace refit;
  try {
    std::vector<int32_t> process_of;
    for (int i = 1; i < argc; ++i) process_of.push_back(std::stoi(argv[i]));
    const MpiMeeting meeting = meet_by_mpi(process_of, 30);
    Bootstrap& bootstrap = *meeting.bootstrap;
    const auto rank = static_cast<size_t>(bootstrap.rank());
    const std::string process = std::getenv("OMPI_COMM_WORLD_RANK");
    if (process != std::to_string(argc == 1 ? bootstrap.rank() : process_of.at(rank))) return 5;
    for (int round = 0; round < 3; ++round) {
      const auto blobs = bootstrap.all_gather(std::to_string(bootstrap.rank() * 10 + round));
      for (int32_t other = 0; other < bootstrap.world(); ++other) {
        if (blobs.at(static_cast<size_t>(other)) != std::to_string(other * 10 + round)) return 3;
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
