#pragma once

#include <cstdint>
#include <memory>

#include "exec/gpu_api.h"

namespace refit {

/// Devices of this host, after a look at the driver. Throws Error (kInput) that says what is
/// missing (driver, device) and where it was looked for.
int32_t count_cuda_devices();

/// The calling thread's device.
int32_t current_cuda_device();

/// Whose communicator (ncclComm_t) it is.
struct CommPlace {
  int32_t rank = -1, world = 0;
};
CommPlace find_comm_place(void* communicator);

/// The real GpuApi, on a device of this host; `device` becomes the calling thread's device. Throws
/// Error (kInput) that says what is missing: a driver, a device of that number, NCCL.
std::unique_ptr<GpuApi> make_cuda_gpu(int32_t device);

}  // namespace refit
