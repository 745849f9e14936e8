#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "exec/bootstrap.h"
#include "exec/gpu_api.h"
#include "exec/nccl_backend.h"
#include "exec/replay.h"
#include "exec/report.h"

namespace refit {

struct NcclOutcome : Outcome {
  std::string device;  // of rank 0, with versions
  NcclBackend::Setup setup;
};

/// Replays the plan file as one rank of a job whose ranks have met; all of them call it. Returns
/// the outcome on rank 0, nothing on the others. Before the first byte all ranks compare version,
/// digest, options and where they run (as replay_on_mpi does). Throws Error that names ranks.
std::optional<NcclOutcome> replay_on_nccl(const std::string& path, GpuApi& gpu,
                                          Bootstrap& bootstrap, const ReplayOptions& options,
                                          const NcclOptions& nccl);

/// Runs `body` on a rank whose failure all others shall know of: what it throws is published.
void with_published_failure(Bootstrap& bootstrap, const std::function<void()>& body);

}  // namespace refit
