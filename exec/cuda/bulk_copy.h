#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "exec/copy_table.h"

namespace refit {

// Copies of long runs by the bulk copy engine of sm_90 and later: one thread a block moves tiles
// through a ring of buffers in shared memory, several on the way at a time, and no registers.

/// How many of its blocks the present device runs at a time; 0 where it has no bulk copies.
cudaError_t count_bulk_blocks(int32_t* blocks);

/// As launch_sweep_kernel, for a table whose runs are all long.
cudaError_t launch_bulk_kernel(const TableView& table, int32_t* marker, int32_t mark,
                               int32_t blocks, cudaStream_t stream);

}  // namespace refit
