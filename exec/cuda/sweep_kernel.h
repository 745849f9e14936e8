#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "exec/sweep.h"

namespace refit {

/// How many thread blocks of the sweep's kernels the device runs at a time.
struct SweepBlocks {
  int32_t copies = 0;  // of sweeps that only copy
  int32_t casts = 0;   // of those that cast
  int32_t bulk = 0;    // of those that only copy long runs; 0: as any other copies
};

/// Of the present device; bulk copies are left out (count_bulk_blocks).
cudaError_t count_sweep_blocks(SweepBlocks* blocks);

/// Writes `mark` to `*marker` (null: no mark) and runs the sweep, in one launch. Returns what the
/// launch returns.
cudaError_t launch_sweep_kernel(const SweepView& sweep, int32_t* marker, int32_t mark,
                                const SweepBlocks& blocks, cudaStream_t stream);

}  // namespace refit
