#pragma once

#include <memory>

#include "exec/gpu_api.h"

namespace refit {

/// Devices of this host, after a look at the driver. Throws Error (kInput) that says what is missing
/// (driver, device) and where it was looked for.
int32_t count_cuda_devices();

/// The real GpuApi, on a device of this host; `device` becomes the calling thread's device. Throws
/// Error (kInput) that says what is missing: a driver, a device of that number, NCCL.
std::unique_ptr<GpuApi> make_cuda_gpu(int32_t device);

}  // namespace refit
