#pragma once

#include "exec/copy_table.h"
#include "exec/host_device.h"

// How a thread finds its units. The same source for the kernel and for its reference on the host.

namespace refit {

/// Where a tile begins: indices and byte offsets of its first run, and how far into that run.
/// Divides 64-bit numbers, so once per tile.
struct TileStart {
  int64_t from = 0, to = 0;
  int64_t unit_in_run = 0;
  int64_t units = 0;  // of this tile
  int64_t index[kMaxDims] = {};
};

REFIT_HOST_DEVICE inline TileStart tile_start(const CopyBox& box, int32_t tile) {
  TileStart start;
  const int64_t first = static_cast<int64_t>(tile - box.first_tile) * kTileUnits;
  start.units = box.units - first < kTileUnits ? box.units - first : kTileUnits;
  int64_t row = first / box.run_units;
  start.unit_in_run = first - row * box.run_units;
  for (int32_t d = box.dims - 1; d >= 0; --d) {
    const int64_t rest = row / box.count[d];
    start.index[d] = row - rest * box.count[d];
    row = rest;
    start.from += start.index[d] * box.from_stride[d];
    start.to += start.index[d] * box.to_stride[d];
  }
  return start;
}

struct UnitPlace {
  int64_t from = 0, to = 0;  // byte offsets
};

/// The place of a tile's unit number `unit`. No 64-bit division: a unit is less than a tile away
/// from the start, so it passes few runs, and few rows of each dimension.
REFIT_HOST_DEVICE inline UnitPlace unit_place(const CopyBox& box, const TileStart& start,
                                              int32_t unit) {
  int64_t in_run = start.unit_in_run + unit;
  int64_t rows = 0;  // runs passed since the start
  if (box.run_units >= kTileUnits) {
    if (in_run >= box.run_units) {
      rows = 1;
      in_run -= box.run_units;
    }
  } else {
    // Exact, since in_run < 2 * kTileUnits and run_units < kTileUnits: their product is below 2^32.
    rows = static_cast<int64_t>(
        static_cast<uint64_t>(in_run) * static_cast<uint64_t>(box.run_inverse) >> 32);
    if (box.run_units == 1) rows = in_run;  // 2^32 does not fit the inverse
    in_run -= rows * box.run_units;
  }
  UnitPlace place{start.from + in_run * box.width, start.to + in_run * box.width};
  for (int32_t d = box.dims - 1; rows != 0; --d) {
    const int64_t count = box.count[d];
    int64_t index = start.index[d] + rows;
    int64_t carry = 0;
    if (index >= count) {
      // index < count + kTileUnits: the quotient is 1, or both numbers are small.
      carry = index < 2 * count ? 1 : static_cast<uint32_t>(index) / static_cast<uint32_t>(count);
      index -= carry * count;
    }
    place.from += (index - start.index[d]) * box.from_stride[d];
    place.to += (index - start.index[d]) * box.to_stride[d];
    rows = carry;
  }
  return place;
}

}  // namespace refit
