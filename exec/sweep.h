#pragma once

#include "exec/cast_table.h"
#include "exec/copy_table.h"

namespace refit {

/// All that a device does to memory in one launch. None of its copies and casts reads what another
/// writes.
struct Sweep {
  CopyTable copies;
  CastTable casts;
  bool empty() const { return copies.empty() && casts.empty(); }
};

/// A sweep where its reader finds it: in device memory, or here. Tiles in this order: largest
/// magnitudes, copies, casts.
struct SweepView {
  TableView copies;
  CastView casts;
  int32_t tiles() const { return casts.maximum_tiles + copies.tiles + casts.tiles; }
};

/// Does what the kernel's threads do, a thread here for each of so many blocks: the reference for
/// the kernel.
void run_sweep(const SweepView& sweep, int32_t blocks = 1);

/// A sweep in one block of memory at `base`: its tables and counters, each at a multiple of 16
/// bytes.
struct PlacedSweep {
  SweepView view;
  int64_t bytes = 0;  // of the block, a multiple of 16
};
/// `image`, unless null, gets the block's content.
PlacedSweep place_sweep(const Sweep& sweep, std::byte* base, std::byte* image);

}  // namespace refit
