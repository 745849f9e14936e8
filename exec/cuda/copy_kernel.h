#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "exec/copy_table.h"

namespace refit {

/// Writes `mark` to `*marker` (null: no mark) and copies the table, in one launch. `blocks` is how
/// many thread blocks the device runs at a time. Returns what the launch returns.
cudaError_t launch_copy_kernel(const TableView& table, int32_t* marker, int32_t mark,
                               int32_t blocks, cudaStream_t stream);

/// Blocks of the copy kernel that run at a time on the present device.
cudaError_t count_copy_blocks(int32_t* blocks);

}  // namespace refit
