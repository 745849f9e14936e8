#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/backend.h"

namespace refit {

// What a device copies in one launch: a table of boxes, cut into tiles.
//
// A box is `count[0] x count[1] x ...` runs of `run` bytes; run by run it goes from one strided
// area to another. A unit is what one access moves, 16 bytes wherever run, addresses and strides
// allow; a tile is kTileUnits successive units of one box, counted in the order of the box's bytes.
// A block of threads copies a tile: thread t the units t, t + kTileThreads, ... So all pieces of
// all peers of a step, whatever their shapes, are one sweep over equal tiles.
//
// The table is plain data: the host builds it, a kernel walks it (exec/cuda/sweep_kernel.cu), and
// copy_tiles walks it on the host in the same way, with the same arithmetic (exec/copy_tile.h).

inline constexpr int32_t kTileThreads = 256;
inline constexpr int32_t kUnitsPerThread = 4;
inline constexpr int32_t kTileUnits = kTileThreads * kUnitsPerThread;
inline constexpr int64_t kLongRunUnits = 256;  // 4 KiB: what a bulk copy is worth setting up for

struct CopyBox {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t run_units = 0;  // units of a run
  int64_t units = 0;      // of the whole box
  int32_t width = 0;      // bytes of a unit: 16, 8, 4, 2 or 1
  int32_t dims = 0;
  int32_t first_tile = 0;    // tiles of the boxes before it
  uint32_t run_inverse = 0;  // ceil(2^32 / run_units), for runs shorter than a tile
  int64_t count[kMaxDims] = {};
  int64_t from_stride[kMaxDims] = {}, to_stride[kMaxDims] = {};  // bytes

  int64_t bytes() const { return units * width; }
};

struct CopyTable {
  std::vector<CopyBox> boxes;
  std::vector<int32_t> box_of_tile;

  int64_t bytes() const;
  bool empty() const { return boxes.empty(); }
  /// Is every box made of 16-byte units in runs of kLongRunUnits or more?
  bool has_long_runs() const;
};

/// A dense block as a Strided.
Strided dense_block(std::byte* base, int64_t bytes);

/// Adds the copy of the bytes of one area, in order, to those of another with equally many. Returns
/// false, and adds nothing, when their runs do not fit into one box: when a boundary of runs or
/// rows of the one is not at a multiple of those of the other. Two areas of the same box of a
/// tensor always fit, and so does everything with a dense block.
bool add_copy(CopyTable& table, const Strided& from, const Strided& to);

/// A copy table where its reader finds it: in device memory, or here.
struct TableView {
  const CopyBox* boxes = nullptr;
  const int32_t* box_of_tile = nullptr;
  int32_t tiles = 0;
  bool long_runs = false;  // as has_long_runs
};
TableView view(const CopyTable& table);

/// Walks the table, or one of its tiles, unit by unit as the kernel's threads do. The reference for
/// the kernel.
void copy_tiles(const TableView& table);
void copy_tile(const TableView& table, int32_t tile);

/// The same bytes moved as this host does it best: row by row.
void copy_boxes(const CopyTable& table);

}  // namespace refit
