#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "exec/backend.h"
#include "exec/cuda/sweep_kernel.h"
#include "exec/sweep.h"

namespace refit {

// What only a GPU can show (tests/gpu/run.sh runs it). Each check adds rows to one table, and
// throws Error where a byte is wrong.

void check_cuda(cudaError_t error, const char* what);

/// A row of the table: run.sh prints its own in the same columns.
void print_row(const std::string& what, const std::string& figure, const std::string& beside,
               const std::string& verdict);

/// A box of a dense tensor at `base`.
Strided part_of(const Dims& shape, const Box& box, Dtype dtype, std::byte* base);

/// Device memory.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return data_; }
  void upload(const std::byte* from, int64_t bytes) const;
  void download(std::byte* to, int64_t bytes) const;

 private:
  std::byte* data_ = nullptr;
};

/// A sweep in device memory.
class DeviceSweep {
 public:
  explicit DeviceSweep(const Sweep& sweep);
  void launch(const SweepBlocks& blocks) const;

 private:
  const DeviceMemory memory_;
  SweepView view_;
};

/// Seconds of the device, the best of ten after one that warms up.
double seconds_of(const std::function<void()>& work);

/// Copies and casts against the host, byte by byte; bulk copies where `blocks` has them.
void check_copies(const SweepBlocks& blocks);
void check_bulk_copies(const SweepBlocks& blocks);
void check_casts(const SweepBlocks& blocks);

/// Their speed, beside a device-to-device copy of as many bytes in the same run.
void time_copies(const SweepBlocks& blocks);
void time_casts(const SweepBlocks& blocks);

/// NCCL: one rank exchanges with itself, enqueued, captured and as a graph.
void check_exchange(int32_t device);

/// One rank's program of a plan, its messages exchanged with itself: speed of the sweeps, and what
/// a replay costs the host with and without a graph.
void time_rank(int32_t device, const std::string& plan, int32_t rank);

}  // namespace refit
