#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "exec/copy_table.h"
#include "plans/box.h"
#include "plans/dtype.h"
#include "plans/quant.h"

namespace refit {

// What a device casts in one launch, beside the copies of copy_table.h: boxes of values, each a
// part of one matrix, made of weights in memory by the formulas of exec/cast.h.
//
// A unit is what a thread makes at a time: the values of some columns of a row, or the scale of a
// block that is part of one row. A tile is kTileThreads * kCastsPerThread units of a box, dealt to
// threads as in copy_table.h. A block of several rows (fp8_block) is a tile of its own: all threads
// look for its largest magnitude, then each makes its part.
//
// Matrices with a global scale are read twice. Their largest magnitude is found by tiles of its
// own, once for all boxes of a matrix, into a slot that the other tiles wait for: blocks of threads
// draw tiles in order from a counter, those that wait for nothing first, so whatever a tile waits
// for has been drawn by a block that runs. The last block puts counter and slots back to zero, so
// that the same launch can be repeated.
//
// As with copies the kernel (exec/cuda/sweep_kernel.cu) and its reference on the host (run_sweep)
// share the source of what a block does (exec/sweep_block.h) and a thread (exec/cast_tile.h).

inline constexpr int32_t kCastColumns = 16;      // that a thread reads at a time
inline constexpr int32_t kCastsPerThread = 4;    // units of a thread in a tile
inline constexpr int32_t kMaximaPerThread = 16;  // such reads, where a maximum is looked for

/// A matrix of weights in memory, or a part of it. Strides in elements.
struct CastSource {
  const std::byte* from = nullptr;  // its first element
  int64_t row_stride = 0, column_stride = 0;
  int64_t rows = 0, columns = 0;
  Dtype dtype = Dtype::kBf16;  // fp32, bf16 or fp16
};

/// Values to be made: `height` x `width` of them, of which the first stands in row `top` and column
/// `left` of the source's values (scales: of its blocks). The source begins at a corner of a block.
struct CastBox {
  CastSource source;
  std::byte* to = nullptr;
  int64_t row_stride = 0, column_stride = 0;  // of `to`, in elements
  int64_t top = 0, left = 0, height = 0, width = 0;
  Dtype dtype = Dtype::kBf16;  // of the values
  Format format = Format::kNone;
  Output output = Output::kData;
  int32_t unit_columns = 0;  // of the source
  int32_t units_of_row = 0, units = 0;
  int32_t first_tile = 0;  // tiles of the boxes before it
  int32_t slot = -1;       // of the matrix' largest magnitude
};

struct CastMaximum {
  CastSource source;
  int32_t pieces_of_row = 0;  // of kCastColumns columns
  int32_t pieces = 0;
  int32_t first_tile = 0, tiles = 0;
};

struct CastTable {
  std::vector<CastBox> boxes;
  std::vector<int32_t> box_of_tile;
  std::vector<CastMaximum> maxima;  // by slot
  std::vector<int32_t> maximum_of_tile;
  std::map<std::tuple<const std::byte*, int64_t, int64_t>, int32_t>
      slots;  // by matrix: first element, rows, columns

  bool empty() const { return boxes.empty(); }
};

/// A box of elements in memory: element (lo + i) at `base` + sum(i[d] * stride[d]) elements.
struct ElementArea {
  std::byte* base = nullptr;
  Dtype dtype = Dtype::kBf16;
  Dims lo, stride;
};

/// Adds the box of an output of a weight of this shape: from the weights in one area to the values
/// in another. kNone: each element of the box converted to the other area's dtype.
void add_cast(CastTable& table, Format format, Output output, const Dims& shape, const Box& box,
              const ElementArea& from, const ElementArea& to);

/// A cast table where its reader finds it. `counters`: kCastCounters, then for each maximum its
/// value and how many tiles have added to it; all zero between launches.
inline constexpr int32_t kCastCounters = 2;  // tiles drawn, blocks that have ended
struct CastView {
  const CastBox* boxes = nullptr;
  const int32_t* box_of_tile = nullptr;
  const CastMaximum* maxima = nullptr;
  const int32_t* maximum_of_tile = nullptr;
  uint32_t* counters = nullptr;
  int32_t tiles = 0, maximum_tiles = 0, slots = 0;
};

}  // namespace refit
