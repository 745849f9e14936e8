#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "exec/device_step.h"
#include "exec/gpu_api.h"

namespace refit {

struct MemoryRange {
  std::byte* first = nullptr;
  std::byte* last = nullptr;  // behind it
  int64_t bytes() const { return last - first; }
};

/// The device memory that a backend has allocated.
class DeviceBlocks {
 public:
  explicit DeviceBlocks(GpuApi& gpu) : gpu_(gpu) {}

  std::byte* allocate(int64_t bytes);  // null for none
  void release_all();

  /// Copies of the sweeps, all in one block.
  struct Sweeps {
    std::vector<SweepView> views;
    int64_t bytes = 0;
  };
  Sweeps upload(std::span<const Sweep* const> sweeps);

  /// What messages read and write where it lies: blocks of ours as a whole, else the ranges that
  /// messages touch; neighbours merged, by address.
  std::vector<MemoryRange> find_ranges(std::span<const WireMessage> messages) const;

 private:
  GpuApi& gpu_;
  std::vector<std::pair<std::byte*, int64_t>> blocks_;  // with their bytes
};

}  // namespace refit
