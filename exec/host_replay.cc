#include "exec/host_replay.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "exec/executor.h"
#include "exec/host_backend.h"

namespace refit {

ReplayReport replay_on_host(const Plan& plan, const ReplayOptions& options) {
  const int32_t world = static_cast<int32_t>(plan.programs.size());
  int64_t needed = 0;
  for (int32_t rank = 0; rank < world; ++rank) {
    const MemoryUse use = memory_use(plan, rank);
    needed += use.buffers + use.staging;
  }
  check_memory(needed, "all ranks");

  std::vector<RankReport> ranks(plan.programs.size());
  HostWorld host(world, options.timeout_s);
  host.run([&](Backend& backend) {
    ranks[static_cast<size_t>(backend.rank())] = replay_rank(plan, backend, options);
  });
  return summarize(std::move(ranks));
}

}  // namespace refit
